// A Metal framework for tests: its classes check and record what is encoded, and run it in the simulator.
#import <Metal/Metal.h>
#include <dispatch/dispatch.h>
#include <objc/runtime.h>
#include <unwind.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "framework.h"
#include "gpu.h"

using gpusim::metal::Binding;
using gpusim::metal::refuse;

// Objects that are released at the end of a pool.
@interface NSAutoreleasePool : NSObject
- (void)drain;
@end

namespace {

struct Pools {
  std::vector<std::vector<id>> open;
};
thread_local Pools pools;

}  // namespace

@implementation NSObject
+ (Class)class {
  return self;
}
+ (instancetype)alloc {
  NSObject* object = class_createInstance(self, 0);
  object->references = 1;
  return object;
}
- (instancetype)init {
  return self;
}
- (instancetype)retain {
  __atomic_add_fetch(&references, 1, __ATOMIC_RELAXED);
  return self;
}
- (oneway void)release {
  if (__atomic_sub_fetch(&references, 1, __ATOMIC_ACQ_REL) == 0) [self dealloc];
}
- (void)dealloc {
  object_dispose(self);
}
- (instancetype)autorelease {
  if (pools.open.empty()) refuse("an object is autoreleased where there is no pool, and stays for good");
  pools.open.back().push_back(self);
  return self;
}
@end

@implementation NSAutoreleasePool
- (instancetype)init {
  pools.open.emplace_back();
  return self;
}
- (void)drain {
  const std::vector<id> objects = std::move(pools.open.back());
  pools.open.pop_back();
  for (id object : objects) [object release];
  [self release];
}
@end

@interface GpusimString : NSString {
  std::string* text;
}
- (instancetype)initWithText:(const std::string&)given;
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char*)text {
  return [[[GpusimString alloc] initWithText:text] autorelease];
}
- (const char*)UTF8String {
  return "";
}
@end

@implementation GpusimString
- (instancetype)initWithText:(const std::string&)given {
  text = new std::string(given);
  return self;
}
- (void)dealloc {
  delete text;
  [super dealloc];
}
- (const char*)UTF8String {
  return text->c_str();
}
@end

@interface GpusimError : NSError {
  NSString* said;
}
- (instancetype)initWithText:(const std::string&)text;
@end

@implementation NSError
- (NSString*)localizedDescription {
  return nil;
}
@end

@implementation GpusimError
- (instancetype)initWithText:(const std::string&)text {
  said = [[GpusimString alloc] initWithText:text];
  return self;
}
- (void)dealloc {
  [said release];
  [super dealloc];
}
- (NSString*)localizedDescription {
  return said;
}
@end

@interface GpusimBuffer : NSObject <MTLBuffer> {
 @public
  char* memory;
  size_t length;
}
@end

@implementation GpusimBuffer
@end

@interface GpusimKernel : NSObject <MTLFunction, MTLComputePipelineState> {
 @public
  const GpusimMetalKernel* kernel;
}
@end

@implementation GpusimKernel
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  const char* const most = std::getenv("GPUSIM_METAL_THREADS");
  return most == nullptr ? kernel->most_threads : std::min<NSUInteger>(kernel->most_threads, std::strtoul(most, nullptr, 10));
}
@end

@interface GpusimLibrary : NSObject <MTLLibrary> {
 @public
  const GpusimMetalKernel* kernels;
}
@end

@implementation GpusimLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  const std::string wanted = name.UTF8String;
  for (const GpusimMetalKernel* kernel = kernels; kernel->name != nullptr; ++kernel) {
    if (kernel->name != wanted) continue;
    GpusimKernel* function = [[GpusimKernel alloc] init];
    function->kernel = kernel;
    return function;
  }
  return nil;
}
@end

// GCC's runtime lays out a class at its declaration, and these are declared like Apple's, without instance variables.
@interface GpusimCompileOptions : MTLCompileOptions {
  BOOL fast;
  MTLLanguageVersion version;
}
@end

@implementation MTLCompileOptions
@dynamic fastMathEnabled, languageVersion;
+ (instancetype)alloc {
  return self == [MTLCompileOptions class] ? [GpusimCompileOptions alloc] : [super alloc];
}
@end

@implementation GpusimCompileOptions
- (instancetype)init {
  fast = YES;
  return self;
}
- (BOOL)fastMathEnabled {
  return fast;
}
- (void)setFastMathEnabled:(BOOL)given {
  fast = given;
}
- (MTLLanguageVersion)languageVersion {
  return version;
}
- (void)setLanguageVersion:(MTLLanguageVersion)given {
  version = given;
}
@end

@interface GpusimDevice : NSObject <MTLDevice>
@end

@implementation GpusimDevice
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error {
  if (options == nil || options.fastMathEnabled) refuse("a library with fast arithmetic, in which NaN is no number");
  if (options.languageVersion < MTLLanguageVersion3_1) refuse("a language without bfloat");
  std::string said;
  const std::string text = source.UTF8String;
  const GpusimMetalKernel* kernels = gpusim::metal::compile(text, said);
  if (kernels == nullptr) {
    *error = [[[GpusimError alloc] initWithText:said] autorelease];
    return nil;
  }
  GpusimLibrary* library = [[GpusimLibrary alloc] init];
  library->kernels = kernels;
  return library;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError**)error {
  GpusimKernel* pipeline = [[GpusimKernel alloc] init];
  pipeline->kernel = static_cast<GpusimKernel*>(function)->kernel;
  return pipeline;
}
@end

namespace {

GpusimDevice* device() {
  static GpusimDevice* const it = [[GpusimDevice alloc] init];
  return it;
}

struct gpusim_queue {
  std::mutex mutex;
};

gpusim_queue queue;
thread_local bool on_queue = false;
bool encoding = false;  // guarded by the queue

// Bindings persist between dispatches.
struct Encoded {
  const GpusimMetalKernel* kernel = nullptr;
  Binding bindings[gpusim::metal::most_bindings];
  size_t threadgroup_bytes = 0;
  bool has_threadgroup_memory = false;

  Binding& at(NSUInteger index) {
    if (index >= gpusim::metal::most_bindings) refuse("an index of a buffer beyond 30");
    return bindings[index];
  }

  void dispatch(MTLSize threads, MTLSize group) const {
    if (kernel == nullptr) refuse("a dispatch before a pipeline is set");
    gpusim::metal::Dispatch given{kernel, {}, threadgroup_bytes, has_threadgroup_memory,
                                  {threads.width, threads.height, threads.depth},
                                  {group.width, group.height, group.depth}};
    std::copy(std::begin(bindings), std::end(bindings), given.bindings);
    gpusim::metal::dispatch(given);
  }
};

}  // namespace

@interface GpusimEncoder : NSObject <MTLComputeCommandEncoder> {
  Encoded* encoded;
}
@end

@implementation GpusimEncoder
- (instancetype)init {
  encoded = new Encoded;
  return self;
}
- (void)dealloc {
  if (encoded != nullptr) refuse("an encoder that was never ended");
  [super dealloc];
}
- (id<MTLDevice>)device {
  return device();
}
- (NSString*)label {
  return nil;
}
- (void)setLabel:(NSString*)label {
  if (label == nil || std::string(label.UTF8String).rfind("fourfold::", 0) != 0) refuse("an encoder's label names no operator");
}
- (Encoded*)open {
  if (encoded == nullptr) refuse("an encoder is used after it has ended");
  if (!on_queue) refuse("an encoder is used outside of torch's queue");
  return encoded;
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  [self open]->kernel = static_cast<GpusimKernel*>(state)->kernel;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  Binding& binding = [self open]->at(index);
  binding = Binding();
  if (buffer == nil) return;
  auto* given = static_cast<GpusimBuffer*>(buffer);
  if (offset > given->length) refuse("an offset beyond the end of a buffer");
  binding.what = Binding::buffer;
  binding.memory = given->memory + offset;
  binding.length = given->length - offset;
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  Binding& binding = [self open]->at(index);
  if (length == 0 || length > 4096) refuse("setBytes takes from 1 to 4096 bytes");
  binding = Binding();
  binding.what = Binding::bytes;
  binding.value.assign(static_cast<const char*>(bytes), length);
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  if (index != 0) refuse("threadgroup memory of another index than 0, which the simulator does not model");
  if (length % 16 != 0 || length > 32 * 1024) refuse("threadgroup memory that is no multiple of 16 bytes, or more than 32 KB");
  [self open]->threadgroup_bytes = length;
  [self open]->has_threadgroup_memory = true;
}
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)group {
  [self open]->dispatch(threads, group);
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)group {
  [self open]->dispatch(MTLSizeMake(groups.width * group.width, groups.height * group.height, groups.depth * group.depth), group);
}
- (void)endEncoding {
  delete [self open];
  encoded = nullptr;
  encoding = false;
}
@end

@interface GpusimCommandBuffer : NSObject <MTLCommandBuffer>
@end

@implementation GpusimCommandBuffer
- (id<MTLDevice>)device {
  return device();
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  if (encoding) refuse("a command encoder is already encoding to this command buffer");
  encoding = true;
  return [[[GpusimEncoder alloc] init] autorelease];
}
@end

void dispatch_sync_f(dispatch_queue_t, void* context, void (*work)(void*)) {
  if (on_queue) refuse("dispatch_sync on the queue that one is on waits for ever");
  const std::lock_guard<std::mutex> lock(queue.mutex);
  on_queue = true;
  work(context);
  on_queue = false;
  if (encoding) refuse("the queue is left before the encoder has ended");
}

// As in torch::mps.
namespace torch::mps {

id<MTLCommandBuffer> get_command_buffer() {
  if (!on_queue) refuse("torch's command buffer is asked for outside of its queue");
  static GpusimCommandBuffer* const it = [[GpusimCommandBuffer alloc] init];
  return it;
}

dispatch_queue_t get_dispatch_queue() { return nullptr; }

}  // namespace torch::mps

void* gpusim_metal_buffer(void* memory, size_t bytes) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<void*, size_t>, GpusimBuffer*>;
  const std::lock_guard<std::mutex> lock(mutex);
  GpusimBuffer*& buffer = (*known)[{memory, bytes}];
  if (buffer == nil) {
    buffer = [[GpusimBuffer alloc] init];
    buffer->memory = static_cast<char*>(memory);
    buffer->length = bytes;
  }
  return buffer;
}

void* gpusim_metal_memory(void* buffer) { return static_cast<GpusimBuffer*>((id)buffer)->memory; }

// With GCC's runtime, C++ exceptions pass a catch (...) in Objective-C++, which catches them on Apple's systems.
extern "C" _Unwind_Reason_Code __gxx_personality_v0(
    int, _Unwind_Action, _Unwind_Exception_Class, struct _Unwind_Exception*, struct _Unwind_Context*);
extern "C" _Unwind_Reason_Code __gnu_objc_personality_v0(
    int version, _Unwind_Action actions, _Unwind_Exception_Class type, struct _Unwind_Exception* exception,
    struct _Unwind_Context* context) {
  return __gxx_personality_v0(version, actions, type, exception, context);
}
