// Compiles kernels from source at their first use, and encodes them into torch's current command buffer, after the
// earlier work of torch and fourfold. Nothing here waits for the GPU.
#pragma once

#import <Metal/Metal.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops/kind.h"

// For host code that includes cpp/formulas/ only for their traits.
#define FOURFOLD_FN inline
#define FOURFOLD_CONSTANT static constexpr

namespace fourfold::mps {

#include "jobs.h"

// A .metal file, with its includes.
struct Source {
  const char* name;
  const char* text;
};

// The names of the storage type and the compute type in Metal's language. Throws an error for types that Apple GPUs
// don't support.
const char* type_name(Kind kind);
const char* compute_name(Kind kind);

class Encoder {
 public:
  explicit Encoder(id<MTLComputeCommandEncoder> encoder) : encoder_(encoder) {}

  // Sets the kernel of the next dispatches: a template of that source, with its arguments; or a pipeline of load().
  void use(const Source& source, const std::string& kernel);
  void use(id<MTLComputePipelineState> pipeline);

  // Set a kernel's arguments, until they are replaced. For an absent tensor a previously bound one is used, which the
  // kernel doesn't access.
  void buffer(int index, Input data);
  template <typename T>
  void value(int index, const T& value) {
    bytes(index, &value, sizeof(T));
  }
  void bytes(int index, const void* value, size_t size);  // at most 4096
  void threadgroup_floats(int64_t count);
  void threadgroup_bytes(int64_t count);

  // Dispatches exactly width * height threads, in groups of group_width; or whole threadgroups.
  void threads(int64_t width, int64_t height, int64_t group_width);
  void groups(int64_t width, int64_t height, int64_t threads);

 private:
  id<MTLComputeCommandEncoder> encoder_;
  id<MTLBuffer> bound_ = nil;
};

// Compiles the kernels of a source that was generated at run time, by name, for the device of torch's queue. They are
// never released. Throws Metal's error if it can't compile one, and an error if a threadgroup can't have that many
// threads.
struct PrintedKernel {
  std::string name;
  int threads;
};
std::vector<id<MTLComputePipelineState>> load(const std::string& text, const std::vector<PrintedKernel>& kernels);

void encode(const char* label, void (*call)(void* context, Encoder& encoder), void* context);

// Calls f with an encoder of torch's command buffer. label: its name in Apple's tools.
template <typename F>
void encode(const char* label, F&& f) {
  encode(
      label, [](void* context, Encoder& encoder) { (*static_cast<F*>(context))(encoder); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace fourfold::mps
