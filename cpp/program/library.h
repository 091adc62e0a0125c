// Shared by the files that implement include/fourfold/program.h.
#pragma once

#include <fourfold/program.h>

#include <memory>
#include <string>

#include "program/backend.h"

namespace fourfold::program {

// A program prepared for tensors of certain layouts; the caller allocates the outputs.
class Prepared {
 public:
  virtual ~Prepared() = default;
  // The tensors must have those layouts.
  virtual void run(const fourfold_tensor* inputs, const fourfold_tensor* outputs) const = 0;
  // See PreparedCall.
  virtual int64_t parts() const = 0;
  virtual void run_part(const fourfold_tensor* inputs, const fourfold_tensor* outputs, int64_t part, int64_t parts) const = 0;
};

// Null if an output can't be written into its given tensor; obstacle is then the reason. The program must outlive the
// result. Throws std::invalid_argument for inputs that don't match the program.
std::unique_ptr<const Prepared> prepare(
    const fourfold_program& program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    std::string& obstacle);

// The backend of a device type, by its number in torch. Throws std::invalid_argument if there is none.
const Backend& backend_of(int32_t device_type);

// The Kind of a dtype, by its number in torch. Throws std::invalid_argument if programs don't support it.
Kind kind_of(int32_t dtype);

// Sets this thread's fourfold_program_error().
void set_error(const char* message);

}  // namespace fourfold::program
