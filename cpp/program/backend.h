// What a backend does with programs: it compiles a checked program, and runs the result on its device's tensors.
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

// A program as a backend runs it on tensors of certain sizes and strides.
class Call {
 public:
  virtual ~Call() = default;

  // Writes the outputs, whose memory is allocated. Any number of threads may call it at once.
  virtual void run(const Tensor* inputs, const Tensor* outputs) const = 0;
  // Into how many parts, at most, threads that run it together can cut it from now on; each is run by itself then.
  virtual int64_t parts() const { return 1; }
  // A part of so many. All together write the outputs.
  virtual void run_part(const Tensor* inputs, const Tensor* outputs, int64_t /*part*/, int64_t /*parts*/) const {
    run(inputs, outputs);
  }
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
  // What that nest is compiled for; empty if no nest runs them.
  virtual std::string layout_of_steps(
      const std::vector<int64_t>& /*sizes*/, const Tensor* /*inputs*/, const Tensor* /*outputs*/, const fourfold_steps& /*steps*/) const {
    return {};
  }
  // From now on.
  virtual void use(Generator) {}
};

// Products with one matrix, or a batch of them: start + a b. With two matrices, start + a b + a2 b2.
class Product {
 public:
  virtual ~Product() = default;

  // a: as many as there are matrices.
  virtual bool takes(const Tensor* a, const Tensor* start, const Tensor& out) const = 0;
  // Into how many parts, at most, it is worth to cut products of so many rows among threads.
  virtual int64_t parts(int64_t rows) const = 0;
  // A part of so many. start: as out, or without its first dimensions, or null for zero.
  virtual void run(const Tensor* a, const Tensor* start, const Tensor& out, int64_t part, int64_t parts) const = 0;
};

// A thread of some that run a loop together: its shares [begin, end) of the work.
class Member {
 public:
  virtual ~Member() = default;
  virtual int64_t begin() const = 0;
  virtual int64_t end() const = 0;
  // How many there are of all threads: at most as many as were asked for.
  virtual int64_t shares() const = 0;
  // Until all have called it as often. What they wrote before can be read then.
  virtual void wait() = 0;
};

class GridDevice;

// What is null, the device doesn't do.
struct Backend {
  // Throws std::invalid_argument for a program that it can't run. The program outlives the result. text: what it was parsed of.
  std::unique_ptr<Executable> (*compile)(const Program& program, std::string_view text) = nullptr;
  // With b (depth, columns) or (batch, depth, columns), whose elements are read now, of so many rows at once; with two matrices of
  // as many columns. Null for tensors that it has no products for.
  std::unique_ptr<const Product> (*product_with)(const Tensor* b, int count, int64_t rows) = nullptr;
  // Calls body, which must not throw, on as many threads as are worth so many shares of work, and returns when all are done.
  void (*together)(int64_t shares, const std::function<void(Member&)>& body) = nullptr;
  // Of a device that runs grids of threads, instead of compile (grid_call.h).
  const GridDevice* grid = nullptr;
};

// Each backend registers itself when the library is loaded, for the device's number in torch.
struct BackendRegistration {
  BackendRegistration(int32_t device_type, const Backend& backend);
};

}  // namespace fourfold::program
