#include "encoder.h"

#include <dispatch/dispatch.h>

#include <cctype>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "ops/aten.h"

// torch/mps.h declares these, but can't be included together with the stable ABI. libtorch_cpu has exported them since
// long before the oldest supported torch. They return the current stream's objects, so they are called for each
// encoding.
namespace torch::mps {
id<MTLCommandBuffer> get_command_buffer();
dispatch_queue_t get_dispatch_queue();
}  // namespace torch::mps

namespace fourfold::mps {
namespace {

[[noreturn]] void fail_to_compile(const std::string& kernel, const char* source, NSError* error) {
  const char* said = error == nil ? nullptr : error.localizedDescription.UTF8String;
  fail("fourfold: Metal does not compile ", kernel, " of ", source, ": ",
       said == nullptr ? "it does not say why" : said);
}

NSString* text(const std::string& words) { return [NSString stringWithUTF8String:words.c_str()]; }

// Releases an object at the end of a scope.
template <typename Object>
class Owned {
 public:
  explicit Owned(Object object) : object_(object) {}
  ~Owned() { [object_ release]; }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Object operator*() const { return object_; }

 private:
  Object object_;
};

// A kernel's name as an identifier, for Apple's tools.
std::string identifier(std::string kernel) {
  for (char& letter : kernel) {
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  }
  return kernel;
}

// Null, with an error, if Metal can't compile it.
id<MTLLibrary> library_of(id<MTLDevice> device, const std::string& source, NSError** error) {
  const Owned<MTLCompileOptions*> options([[MTLCompileOptions alloc] init]);
  (*options).fastMathEnabled = NO;  // fast math assumes that there are no NaNs and infinities
  (*options).languageVersion = MTLLanguageVersion3_1;  // the first with bfloat
  return [device newLibraryWithSource:text(source) options:*options error:error];
}

// kernel, source: their names in errors.
id<MTLComputePipelineState> pipeline_of(
    id<MTLLibrary> library, id<MTLDevice> device, const std::string& name, const std::string& kernel,
    const char* source) {
  const Owned<id<MTLFunction>> function([library newFunctionWithName:text(name)]);
  if (*function == nil) fail_to_compile(kernel, source, nil);
  NSError* error = nil;
  const id<MTLComputePipelineState> pipeline = [device newComputePipelineStateWithFunction:*function error:&error];
  if (pipeline == nil) fail_to_compile(kernel, source, error);
  return pipeline;
}

id<MTLComputePipelineState> compile(id<MTLDevice> device, const Source& source, const std::string& kernel) {
  const std::string name = identifier(kernel);
  const std::string instance = "\nnamespace fourfold {\n#line 1 \"" + kernel + "\"\ntemplate [[host_name(\"" + name +
                               "\")]] [[kernel]] decltype(" + kernel + ") " + kernel + ";\n}\n";
  NSError* error = nil;
  const Owned<id<MTLLibrary>> library(library_of(device, source.text + instance, &error));
  if (*library == nil) fail_to_compile(kernel, source.name, error);
  return pipeline_of(*library, device, name, kernel, source.name);
}

// Compiled once per device, and never released.
id<MTLComputePipelineState> pipeline_of(id<MTLDevice> device, const Source& source, const std::string& kernel) {
  using Key = std::tuple<id<MTLDevice>, const char*, std::string>;
  static std::mutex mutex;
  static auto* const known = new std::map<Key, id<MTLComputePipelineState>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const Key key{device, source.text, kernel};
  const auto found = known->find(key);
  if (found != known->end()) return found->second;
  return known->emplace(key, compile(device, source, kernel)).first->second;
}

constexpr const char* printed = "a compiled program";

std::vector<id<MTLComputePipelineState>> compile(
    id<MTLDevice> device, const std::string& text, const std::vector<PrintedKernel>& kernels) {
  NSError* error = nil;
  const Owned<id<MTLLibrary>> library(library_of(device, text, &error));
  if (*library == nil) {
    std::string names;
    for (const PrintedKernel& kernel : kernels) names += (names.empty() ? "" : " and ") + kernel.name;
    fail_to_compile(names, printed, error);
  }
  std::vector<id<MTLComputePipelineState>> pipelines;
  for (const PrintedKernel& kernel : kernels) {
    pipelines.push_back(pipeline_of(*library, device, kernel.name, kernel.name, printed));
    const auto most = static_cast<int64_t>(pipelines.back().maxTotalThreadsPerThreadgroup);
    if (most < kernel.threads) {
      fail("fourfold: expected threadgroups of ", kernel.threads, " threads for ", kernel.name, " of ", printed,
           ", but this GPU has room for ", most);
    }
  }
  return pipelines;
}

struct Encoding {
  const char* label;
  void (*call)(void* context, Encoder& encoder);
  void* context;
  std::exception_ptr thrown;
};

// Runs on torch's queue, where nothing else encodes at the same time. Exceptions must not propagate through the queue.
void encode_on_queue(void* given) {
  auto& encoding = *static_cast<Encoding*>(given);
  @autoreleasepool {
    id<MTLComputeCommandEncoder> metal = nil;
    try {
      // This ends the encoder that torch may have open.
      metal = [torch::mps::get_command_buffer() computeCommandEncoder];
      if (metal == nil) {
        fail("fourfold: torch's command buffer gives no encoder; an earlier command of the GPU has failed");
      }
      metal.label = text(encoding.label);
      Encoder encoder(metal);
      encoding.call(encoding.context, encoder);
    } catch (...) {
      encoding.thrown = std::current_exception();
    }
    [metal endEncoding];
  }
}

void device_on_queue(void* device) {
  *static_cast<id<MTLDevice>*>(device) = torch::mps::get_command_buffer().device;
}

}  // namespace

const char* type_name(Kind kind) {
  switch (kind) {
    case Kind::boolean: return "bool";
    case Kind::uint8: return "uchar";
    case Kind::int8: return "char";
    case Kind::int16: return "short";
    case Kind::int32: return "int";
    case Kind::int64: return "long";
    case Kind::float16: return "half";
    case Kind::bfloat16: return "bfloat";
    case Kind::float32: return "float";
    default:
      fail("fourfold: Apple's GPUs do not compute in torch.float64; convert to torch.float32, or move to the CPU");
  }
}

const char* compute_name(Kind kind) {
  switch (kind) {
    case Kind::float16:
    case Kind::bfloat16:
    case Kind::float32: return "float";
    default: return "ulong";
  }
}

void Encoder::use(const Source& source, const std::string& kernel) {
  use(pipeline_of(encoder_.device, source, kernel));
}

void Encoder::use(id<MTLComputePipelineState> pipeline) { [encoder_ setComputePipelineState:pipeline]; }

void Encoder::buffer(int index, Input data) {
  const bool there = data.base != nullptr;
  if (there) bound_ = (id<MTLBuffer>)const_cast<void*>(data.base);
  const NSUInteger offset = there ? static_cast<NSUInteger>(data.offset) : 0;
  [encoder_ setBuffer:bound_ offset:offset atIndex:static_cast<NSUInteger>(index)];
}

void Encoder::bytes(int index, const void* value, size_t size) {
  [encoder_ setBytes:value length:size atIndex:static_cast<NSUInteger>(index)];
}

void Encoder::threadgroup_floats(int64_t count) { threadgroup_bytes(count * static_cast<int64_t>(sizeof(float))); }

void Encoder::threadgroup_bytes(int64_t count) {
  constexpr int64_t unit = 16;
  const int64_t rounded = (count + unit - 1) / unit * unit;
  [encoder_ setThreadgroupMemoryLength:static_cast<NSUInteger>(rounded) atIndex:0];
}

void Encoder::threads(int64_t width, int64_t height, int64_t group_width) {
  [encoder_ dispatchThreads:MTLSizeMake(static_cast<NSUInteger>(width), static_cast<NSUInteger>(height), 1)
      threadsPerThreadgroup:MTLSizeMake(static_cast<NSUInteger>(group_width), 1, 1)];
}

void Encoder::groups(int64_t width, int64_t height, int64_t threads) {
  [encoder_ dispatchThreadgroups:MTLSizeMake(static_cast<NSUInteger>(width), static_cast<NSUInteger>(height), 1)
           threadsPerThreadgroup:MTLSizeMake(static_cast<NSUInteger>(threads), 1, 1)];
}

std::vector<id<MTLComputePipelineState>> load(const std::string& text, const std::vector<PrintedKernel>& kernels) {
  id<MTLDevice> device = nil;
  dispatch_sync_f(torch::mps::get_dispatch_queue(), &device, device_on_queue);
  // Exceptions must not propagate through the autorelease pool.
  std::vector<id<MTLComputePipelineState>> pipelines;
  std::exception_ptr thrown;
  @autoreleasepool {
    try {
      pipelines = compile(device, text, kernels);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
  return pipelines;
}

void encode(const char* label, void (*call)(void* context, Encoder& encoder), void* context) {
  Encoding encoding{label, call, context, nullptr};
  dispatch_sync_f(torch::mps::get_dispatch_queue(), &encoding, encode_on_queue);
  if (encoding.thrown) std::rethrow_exception(encoding.thrown);
}

}  // namespace fourfold::mps
