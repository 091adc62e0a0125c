// torch's stable ABI. torch's headers would format their errors with iostreams (system/text.h explains why not), so their
// checks are replaced by fourfold's. A file must include this before any of torch's headers that contain such checks.
#pragma once

#include <torch/csrc/stable/macros.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include "ops/fail.h"

namespace fourfold {

// Throws std::runtime_error with torch's error message. what: names the call of torch that failed.
[[noreturn]] void fail_call(const char* what);

}  // namespace fourfold

#undef TORCH_ERROR_CODE_CHECK
#define TORCH_ERROR_CODE_CHECK(call) \
  if ((call) != TORCH_SUCCESS) { fourfold::fail_call(#call); }
#undef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK(call) TORCH_ERROR_CODE_CHECK(call)
#undef STD_TORCH_CHECK
#define STD_TORCH_CHECK(holds, ...) \
  if (!(holds)) { fourfold::fail("fourfold: torch expected " #holds __VA_OPT__(, ": ", ) __VA_ARGS__); }

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
