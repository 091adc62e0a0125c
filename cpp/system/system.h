// What fourfold asks of the operating system, in one place: posix.h and windows.h have the bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fourfold::system {

// A file that this process has loaded, a shared library or the program, and the address where it lies.
struct LoadedFile {
  std::string path;  // empty if unknown
  const void* base = nullptr;
};

// The file that holds the code or data at this address.
LoadedFile file_of(const void* address);

// The paths of all files that are loaded.
std::vector<std::string> loaded_paths();

// The address of a symbol of this library, which is named as the loader knows it, by a path or a name; on Linux and macOS also of
// a symbol of the libraries that it loads itself. Null if the library is not loaded or has no such symbol.
void* symbol_of(const char* library, const char* symbol);

// Of the first library in this process that has it.
void* symbol_of_process(const char* symbol);

// Loads a library, by a path or a name, for as long as the process. Null if it can't be loaded.
void* load(const char* library);

// Of a library that load() returned; null if it has no such symbol.
void* symbol_in(void* library, const char* symbol);

// The library whose threads torch's run on, for symbol_of. Null where nothing is known of it.
const char* openmp_of_torch();

// How many CPUs threads that this one starts may run on; 0 where the system does not say.
int64_t permitted_cpus();

// A core's level 2 cache; 0 where the system does not say.
int64_t level_2_cache_bytes();

// Whether this process may use AMX's tiles. Linux wants to be asked, and the process keeps the permission for good.
bool request_tiles();

// Memory at a multiple of `alignment`, a power of two that divides `bytes`; null if there is none. Only release() frees it.
void* allocate_aligned(size_t alignment, size_t bytes);
void release_aligned(void* memory);

// Calls these functions around a fork, as pthread_atfork does. Windows has no fork, so none is called there.
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

// A regular file in memory. Writes stay this process's. The path is UTF-8. Throws std::runtime_error, with a sentence that does not
// name the path, where it can't be opened, read or mapped, or is no regular file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }  // null if the file is empty
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fourfold::system

#if defined(_WIN32)
#include "windows.h"
#else
#include "posix.h"
#endif
