// The interface of backends that run programs: compile a checked program, then run it on the device's tensors.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "program/layout.h"
#include "program/nests.h"

namespace fourfold::program {

// A compiled program prepared for tensors of certain sizes and strides.
class PreparedCall {
 public:
  virtual ~PreparedCall() = default;

  // Computes the outputs, which the caller allocates. Any number of threads may call it at once.
  virtual void run(const Tensor* inputs, const Tensor* outputs) const = 0;
  // The maximum number of parts for run_part(), with which threads share one run.
  virtual int64_t parts() const { return 1; }
  // Runs one of `parts` parts. All parts together compute the outputs.
  virtual void run_part(const Tensor* inputs, const Tensor* outputs, int64_t /*part*/, int64_t /*parts*/) const {
    run(inputs, outputs);
  }
  // The layout that its loop nest is compiled for.
  virtual const std::string& layout() const = 0;
};

inline constexpr const char* no_elements = "its tensors have no elements";

// A program compiled by a backend.
class Executable {
 public:
  virtual ~Executable() = default;

  // sizes: of the axes. The tensors' data pointers are ignored. The executable must outlive the result.
  virtual std::unique_ptr<const PreparedCall> prepare(
      const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs) const = 0;
  // Runs a loop's steps in one nest, see fourfold_program_run_steps(). Returns why there is no nest; empty if it ran.
  virtual std::string run_steps(const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs,
                                const fourfold_steps& steps) const = 0;
  // The layout that this nest is compiled for; empty if the tensors have no elements.
  virtual std::string layout_of_steps(const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs,
                                      const fourfold_steps& steps) const = 0;
  // Sets the generator for later calls.
  virtual void use(Generator) {}
};

// A product with fixed right-hand matrices: start + a b, also batched, or start + a b + a2 b2.
class Product {
 public:
  virtual ~Product() = default;

  // Whether the matrices are packed as best for so many rows.
  virtual bool suits(int64_t rows) const = 0;
  // Whether run() supports these tensors. a: one tensor for each matrix.
  virtual bool takes(const Tensor* a, const Tensor* start, const Tensor& out) const = 0;
  // The maximum number of parts into which threads should split a product of so many rows.
  virtual int64_t parts(int64_t rows) const = 0;
  // Runs one of `parts` parts. start: shaped like out, or without its first dimensions (broadcast), or null for zero.
  virtual void run(const Tensor* a, const Tensor* start, const Tensor& out, int64_t part, int64_t parts) const = 0;
};

// A thread of a team that runs a loop together: its shares [begin, end) of the work.
class Member {
 public:
  virtual ~Member() = default;
  virtual int64_t begin() const = 0;
  virtual int64_t end() const = 0;
  // The number of shares of all threads together: at most as many as requested.
  virtual int64_t shares() const = 0;
  // A barrier of all threads. Writes before it are visible after it.
  virtual void wait() = 0;
};

class GridDevice;

// Null members are unsupported by the device.
struct Backend {
  // Throws std::invalid_argument for a program that it can't run. The program must outlive the result. text: its
  // source.
  std::unique_ptr<Executable> (*compile)(const Program& program, std::string_view text) = nullptr;
  // A product with b, (depth, columns) or (batch, depth, columns), or with two matrices of equally many columns, for
  // `rows` rows at once. Reads b's elements immediately. Null for unsupported tensors.
  std::unique_ptr<const Product> (*product_with)(const Tensor* b, int count, int64_t rows) = nullptr;
  // Calls body, which must not throw, on as many threads as `shares` shares of work justify; returns when all are done.
  void (*together)(int64_t shares, const std::function<void(Member&)>& body) = nullptr;
  // Replaces `compile` on devices that run grids of threads (grid_call.h).
  const GridDevice* grid = nullptr;
};

// Each backend registers itself when the library is loaded, under the number of its device type in torch.
struct BackendRegistration {
  BackendRegistration(int32_t device_type, const Backend& backend);
};

}  // namespace fourfold::program
