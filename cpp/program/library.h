// What the files behind include/fourfold/program.h share.
#pragma once

#include <fourfold/program.h>

#include <memory>
#include <vector>

#include "program/backend.h"

namespace fourfold::program {

// A program on tensors of certain layouts, whose outputs' memory is given.
class Prepared {
 public:
  virtual ~Prepared() = default;
  // Of those layouts.
  virtual void run(const fourfold_tensor* inputs, const fourfold_tensor* outputs) const = 0;
  // As Call's.
  virtual int64_t parts() const = 0;
  virtual void run_part(const fourfold_tensor* inputs, const fourfold_tensor* outputs, int64_t part, int64_t parts) const = 0;
};

// Null where an output can't be written into the tensor that is given for it. The program outlives the result. Throws
// std::invalid_argument for inputs that don't fit.
std::unique_ptr<const Prepared> prepare(
    const fourfold_program& program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs);

// By the device's number in torch. Throws std::invalid_argument.
const Backend& backend_of(int32_t device_type);

// Those of all backends.
std::vector<int32_t> backend_types();

// The same for a dtype.
Kind kind_of(int32_t dtype);

// What fourfold_program_error() says from now on, in this thread.
void set_error(const char* message);

}  // namespace fourfold::program
