// How a kernel reaches the GPU: compiled by the system from source when it is first asked for, and encoded into torch's
// current command buffer, behind what torch and fourfold have encoded before. Nothing here waits for the GPU.
#pragma once

#import <Metal/Metal.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops/kind.h"

// What cpp/formulas/ need of a host that only asks them what a formula is.
#define FOURFOLD_FN inline
#define FOURFOLD_CONSTANT static constexpr

namespace fourfold::mps {

#include "jobs.h"

// A .metal file, with what it includes.
struct Source {
  const char* name;
  const char* text;
};

// What a kernel's language calls the type in memory, and the type it computes in. Throws a sentence where Apple's GPUs
// have none.
const char* type_name(Kind kind);
const char* compute_name(Kind kind);

class Encoder {
 public:
  explicit Encoder(id<MTLComputeCommandEncoder> encoder) : encoder_(encoder) {}

  // What is dispatched from here on: a template of that source, with its arguments; or a pipeline of load().
  void use(const Source& source, const std::string& kernel);
  void use(id<MTLComputePipelineState> pipeline);

  // A kernel's arguments, until others take their place. Where a job leaves a tensor out, one that was bound before it
  // stands in, which the kernel is told not to touch.
  void buffer(int index, Input data);
  template <typename T>
  void value(int index, const T& value) {
    bytes(index, &value, sizeof(T));
  }
  void bytes(int index, const void* value, size_t size);  // 4096 at most
  void threadgroup_floats(int64_t count);
  void threadgroup_bytes(int64_t count);

  // Threads, exactly so many, in groups of that width.
  void threads(int64_t width, int64_t height, int64_t group_width);
  void groups(int64_t width, int64_t height, int64_t threads);

 private:
  id<MTLComputeCommandEncoder> encoder_;
  id<MTLBuffer> bound_ = nil;
};

// The kernels of a source that was printed at run time, by name, for the device of torch's queue. They stay as long as the
// process. Throws what Metal says of one that it doesn't compile, or where a threadgroup can't have so many threads.
struct PrintedKernel {
  std::string name;
  int threads;
};
std::vector<id<MTLComputePipelineState>> load(const std::string& text, const std::vector<PrintedKernel>& kernels);

void encode(const char* label, void (*call)(void* context, Encoder& encoder), void* context);

// Calls f with an encoder of torch's command buffer. The label is what Apple's tools show of it.
template <typename F>
void encode(const char* label, F&& f) {
  encode(
      label, [](void* context, Encoder& encoder) { (*static_cast<F*>(context))(encoder); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace fourfold::mps
