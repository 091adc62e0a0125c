// system.h on Linux and macOS.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#if defined(__APPLE__)
extern "C" uint32_t _dyld_image_count();
extern "C" const char* _dyld_get_image_name(uint32_t);
#else
#include <link.h>
#include <sched.h>
#include <sys/syscall.h>
#endif

namespace fourfold::system {

inline LoadedFile file_of(const void* address) {
  Dl_info found{};
  if (dladdr(address, &found) == 0) return {};
  return {found.dli_fname == nullptr ? "" : found.dli_fname, found.dli_fbase};
}

inline std::vector<std::string> loaded_paths() {
  std::vector<std::string> paths;
#if defined(__APPLE__)
  for (uint32_t k = 0; k < _dyld_image_count(); ++k) {
    if (const char* name = _dyld_get_image_name(k)) paths.emplace_back(name);
  }
#else
  const auto add = [](dl_phdr_info* info, size_t, void* to) {
    if (info->dlpi_name != nullptr) static_cast<std::vector<std::string>*>(to)->emplace_back(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(add, &paths);
#endif
  return paths;
}

inline void* symbol_of(const char* library, const char* symbol) {
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return nullptr;
  void* const found = dlsym(loaded, symbol);
  dlclose(loaded);  // it stays loaded
  return found;
}

inline void* load(const char* library) { return dlopen(library, RTLD_LAZY | RTLD_LOCAL); }

inline void* symbol_in(void* library, const char* symbol) { return dlsym(library, symbol); }

inline void* symbol_of_process(const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); }

inline const char* openmp_of_torch() {
#if defined(__linux__)
  return "libtorch_cpu.so";  // some builds of torch use their own thread pool instead
#else
  return nullptr;
#endif
}

inline int64_t permitted_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return 0;
}

inline int64_t level_2_cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  if (const long found = sysconf(_SC_LEVEL2_CACHE_SIZE); found > 0) return found;
#endif
  return 0;
}

inline bool request_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr int64_t request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int64_t tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return true;
#endif
}

inline void* allocate_aligned(size_t alignment, size_t bytes) { return std::aligned_alloc(alignment, bytes); }
inline void release_aligned(void* memory) { std::free(memory); }

inline void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
  pthread_atfork(before, in_parent, in_child);
}

inline MappedFile::MappedFile(const std::string& path) {
  const auto reason = [] { return std::generic_category().message(errno); };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("it can't be opened: " + reason());
  std::string error;
  struct stat facts {};
  if (::fstat(file, &facts) != 0) {
    error = "it can't be read: " + reason();
  } else if (!S_ISREG(facts.st_mode)) {
    error = "it is no regular file";
  } else if (facts.st_size > 0) {
    size_ = static_cast<size_t>(facts.st_size);
    void* const found = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (found == MAP_FAILED) {
      error = "it can't be mapped: " + reason();
    } else {
      data_ = static_cast<char*>(found);
    }
  }
  ::close(file);
  if (!error.empty()) throw std::runtime_error(error);
}

inline MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace fourfold::system
