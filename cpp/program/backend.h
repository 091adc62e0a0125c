// What a backend does with programs: it compiles a checked program, and runs the result on its device's tensors.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "program/layout.h"
#include "program/nests.h"

namespace fourfold::program {

// A program as a backend runs it on tensors of certain sizes and strides.
class Call {
 public:
  virtual ~Call() = default;

  // Writes the outputs, whose memory is allocated. Any number of threads may call it at once.
  virtual void run(const Tensor* inputs, const Tensor* outputs) const = 0;
  // What its nest is compiled for.
  virtual const std::string& layout() const = 0;
};

// A program as a backend runs it.
class Executable {
 public:
  virtual ~Executable() = default;

  // `sizes` are the axes'; of the tensors, what they point to is not read. The executable outlives the result.
  virtual std::unique_ptr<const Call> prepare(
      const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs) const = 0;
  // Runs a loop's steps in one nest, see fourfold_program_run_steps(). False: there is none, or not yet.
  virtual bool run_steps(
      const std::vector<int64_t>& /*sizes*/, const Tensor* /*inputs*/, const Tensor* /*outputs*/, const fourfold_steps& /*steps*/) const {
    return false;
  }
  // From now on.
  virtual void use(Generator) {}
};

// Products with one matrix, or a batch of them: start + a b.
class Product {
 public:
  virtual ~Product() = default;

  virtual bool takes(const Tensor& a, const Tensor* start, const Tensor& out) const = 0;
  // start: as out, or without its first dimensions, or null for zero.
  virtual void run(const Tensor& a, const Tensor* start, const Tensor& out) const = 0;
};

struct Backend {
  // Throws std::invalid_argument for a program that it can't run. The program outlives the result. text: what it was parsed of.
  std::unique_ptr<Executable> (*compile)(const Program& program, std::string_view text);
  // With b (depth, columns) or (batch, depth, columns), whose elements are read now; null for tensors that it has no products for.
  std::unique_ptr<const Product> (*product_with)(const Tensor& b);
};

// Each backend registers itself when the library is loaded, for the device's number in torch.
struct BackendRegistration {
  BackendRegistration(int32_t device_type, const Backend& backend);
};

}  // namespace fourfold::program
