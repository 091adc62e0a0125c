#include "gpu.h"

#include <device_functions.h>
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <spawn.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../library/current_stream.h"

extern char** environ;

namespace gpusim::metal {
namespace {

// A launch's arguments; constants are in device memory, for the checks.
struct Running {
  Dispatch dispatch;
  void* buffers[most_bindings];
};

// In this thread, and in the threads that it starts.
struct SubnormalsAreZero {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  SubnormalsAreZero() { _mm_setcsr(before | _MM_FLUSH_ZERO_ON | 0x40); }
  ~SubnormalsAreZero() { _mm_setcsr(before); }
#endif
};

unsigned position_in_grid(const Thread& thread, int axis) {
  const dim3& group = thread.block->index;
  const dim3& size = thread.block->launch->block;
  const unsigned of_group[] = {group.x, group.y, group.z}, width[] = {size.x, size.y, size.z};
  const unsigned index[] = {thread.index.x, thread.index.y, thread.index.z};
  return of_group[axis] * width[axis] + index[axis];
}

void call(const void*) {
  void* buffers[most_bindings];  // a copy on the GPU thread's stack
  void (*kernel)(void* const* buffers) = nullptr;
  {
    const Unwatched unwatched;
    const auto& now = *static_cast<const Running*>(current->block->launch->arguments);
    for (int axis = 0; axis < 3; ++axis) {
      if (position_in_grid(*current, axis) < now.dispatch.threads[axis]) continue;
      ++current->block->absent;
      return;
    }
    std::copy(now.buffers, now.buffers + most_bindings, buffers);
    kernel = now.dispatch.kernel->call;
  }
  const InKernel in_kernel;
  kernel(buffers);
}

std::string contents(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

// The path of the library that contains this code.
std::string own_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&dispatch), &info) == 0) fail("dladdr does not know the simulated library");
  return info.dli_fname;
}

int run_compiler(const std::string& source, const std::string& library, const std::string& errors) {
  std::vector<std::string> words;
  std::istringstream given(GPUSIM_METAL_COMPILER);  // the program and its first arguments
  for (std::string word; given >> word;) words.push_back(word);
  words.insert(words.end(), {source, library, own_path()});
  std::istringstream flags(GPUSIM_METAL_FLAGS);
  for (std::string word; given.clear(), flags >> word;) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  pid_t child = 0;
  // The compiler must not preload the sanitizer's runtime that this process preloads.
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string(*entry).rfind("LD_PRELOAD=", 0) != 0) environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("cannot run %s: %s", arguments[0], std::strerror(error));
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

void note_launch(const std::string& name) {
  static const char* const file_name = std::getenv("GPUSIM_LAUNCHES");
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  if (file_name == nullptr || !known.insert(name).second) return;
  std::FILE* file = std::fopen(file_name, "a");
  if (file == nullptr) fail("GPUSIM_LAUNCHES is %s, which cannot be written", file_name);
  std::fprintf(file, "%s\n", name.c_str());
  std::fclose(file);
}

// Appends the path of each source that host code compiles to the file of GPUSIM_SOURCES.
void note_source(const std::string& source) {
  static const char* const file_name = std::getenv("GPUSIM_SOURCES");
  if (file_name != nullptr) std::ofstream(file_name, std::ios::app) << source << '\n';
}

std::string index_of(const GpusimMetalParameter& parameter) { return std::to_string(parameter.index); }

void check_bindings(const Dispatch& given) {
  const std::string name = kernel_name(given.kernel->function);
  for (unsigned k = 0; k < given.kernel->parameters; ++k) {
    const GpusimMetalParameter& parameter = given.kernel->parameter[k];
    if (parameter.what == GpusimMetalWhat::group_memory && !given.has_threadgroup_memory) {
      refuse((name + " takes threadgroup memory, of which no length is set").c_str());
    }
    if (parameter.what != GpusimMetalWhat::buffer) continue;
    const Binding& binding = given.bindings[parameter.index];
    if (binding.what == Binding::nothing) refuse((name + " takes buffer " + index_of(parameter) + ", which is not bound").c_str());
    const size_t length = binding.what == Binding::bytes ? binding.value.size() : binding.length;
    if (parameter.one && length < parameter.bytes) {
      refuse((name + " reads " + std::to_string(parameter.bytes) + " bytes of buffer " + index_of(parameter) + ", which has " +
              std::to_string(length)).c_str());
    }
    if (reinterpret_cast<uintptr_t>(binding.memory) % parameter.alignment != 0) {
      refuse((name + " takes buffer " + index_of(parameter) + " at an offset that is no multiple of " +
              std::to_string(parameter.alignment)).c_str());
    }
  }
}

}  // namespace

void refuse(const char* sentence) { fail("Metal: %s", sentence); }

const GpusimMetalKernel* compile(const std::string& source, std::string& said) {
  const std::string folder = own_path().substr(0, own_path().rfind('/')) + "/kernels";
  char base[64];
  std::snprintf(base, sizeof base, "/%016zx", std::hash<std::string>()(source));
  const std::string file = folder + base;
  const std::string library = file + ".so";
  note_source(file + ".metal");
  if (access(library.c_str(), R_OK) != 0) {
    const std::string own = file + "." + std::to_string(getpid());
    std::ofstream(own + ".metal") << source;
    const int status = run_compiler(own + ".metal", library, own + ".errors");
    said = contents(own + ".errors");
    std::remove((own + ".errors").c_str());
    std::rename((own + ".metal").c_str(), (file + ".metal").c_str());
    if (status != 0) return nullptr;
  }
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    said = dlerror();
    return nullptr;
  }
  const auto* kernels = static_cast<const GpusimMetalKernel*>(dlsym(handle, "gpusim_metal_kernels"));
  if (kernels == nullptr) said = "the compiler made no kernel";
  return kernels;
}

void dispatch(const Dispatch& given) {
  const uint64_t threads = given.group[0] * given.group[1] * given.group[2];
  if (threads == 0 || threads > given.kernel->most_threads) {
    refuse(("a threadgroup of " + std::to_string(threads) + " threads, of which " + kernel_name(given.kernel->function) +
            " has at most " + std::to_string(given.kernel->most_threads)).c_str());
  }
  uint64_t groups[3];
  for (int axis = 0; axis < 3; ++axis) {
    groups[axis] = (given.threads[axis] + given.group[axis] - 1) / given.group[axis];
    if (groups[axis] == 0) refuse("a dispatch of no threads");
    if (given.threads[axis] > UINT32_MAX) refuse("a dispatch whose threads' positions 32 bits do not hold");
  }
  check_bindings(given);
  note_launch(kernel_name(given.kernel->function));
  auto* running = new Running{given, {}};
  std::vector<void*> constants;
  for (unsigned k = 0; k < most_bindings; ++k) {
    Binding& binding = running->dispatch.bindings[k];
    if (binding.what == Binding::bytes) {
      void* memory = allocate(0, binding.value.size(), true);
      std::memcpy(memory, binding.value.data(), binding.value.size());
      constants.push_back(memory);
      binding.memory = static_cast<char*>(memory);
    }
    running->buffers[k] = binding.memory;
  }
  Launch it;
  it.grid = dim3(static_cast<unsigned>(groups[0]), static_cast<unsigned>(groups[1]), static_cast<unsigned>(groups[2]));
  it.block = dim3(static_cast<unsigned>(given.group[0]), static_cast<unsigned>(given.group[1]),
                  static_cast<unsigned>(given.group[2]));
  it.shared_bytes = given.threadgroup_bytes;
  it.all_meet = true;
  it.kernel = given.kernel->function;
  it.call = call;
  it.arguments = running;
  streams().add(current_stream(0), [it, running, constants]() mutable {
    {
      const SubnormalsAreZero as_on_apples_gpus;
      run(it);
    }
    for (void* memory : constants) (void)release(memory);
    delete running;
  });
}

}  // namespace gpusim::metal

using namespace gpusim;

void gpusim_metal_barrier(std::source_location site) { block_barrier("threadgroup_barrier", 0, site); }

unsigned gpusim_metal_exchange(
    const char* operation, const void* mine, size_t bytes, void* of_lane, std::source_location site) {
  const Unwatched unwatched;
  const Meeting& meeting = current->block->scheduler->meet(*current, full_mask, operation, mine, bytes, false, false, site);
  std::memcpy(of_lane, meeting.data.data(), warp_width * bytes);
  return static_cast<unsigned>(meeting.arrived);
}

unsigned gpusim_metal_lane() {
  const Unwatched unwatched;
  return current->lane;
}

void gpusim_metal_fail(const char* operation, std::source_location site) {
  const Unwatched unwatched;
  fault(*current, std::string("calls ") + operation + " where not all of the simdgroup's threads do, at " +
                      site.file_name() + ":" + std::to_string(site.line()));
}

GpusimMetalPosition gpusim_metal_position() {
  const Unwatched unwatched;
  const Thread& thread = *current;
  GpusimMetalPosition position{};
  for (int axis = 0; axis < 3; ++axis) position.grid[axis] = metal::position_in_grid(thread, axis);
  const dim3& group = thread.block->index;
  position.group[0] = group.x;
  position.group[1] = group.y;
  position.group[2] = group.z;
  const dim3& groups = thread.block->launch->grid;
  position.groups[0] = groups.x;
  position.groups[1] = groups.y;
  position.groups[2] = groups.z;
  position.index_in_group = thread.linear;
  position.lane = thread.lane;
  position.simdgroup = thread.linear / warp_width;
  return position;
}

void* gpusim_metal_threadgroup_memory() {
  const Unwatched unwatched;
  return current->block->shared;
}
