// All operating system functions that fourfold uses; posix.h and windows.h implement them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fourfold::system {

// A file that this process has loaded (a shared library or the program) and its base address.
struct LoadedFile {
  std::string path;  // empty if unknown
  const void* base = nullptr;
};

// The file that contains the code or data at this address.
LoadedFile file_of(const void* address);

// The paths of all loaded files.
std::vector<std::string> loaded_paths();

// The address of a symbol of a loaded library, given by its path or name; on Linux and macOS also of a symbol of its
// dependencies. Null if the library is not loaded or has no such symbol.
void* symbol_of(const char* library, const char* symbol);

// The symbol in the first library of this process that has it.
void* symbol_of_process(const char* symbol);

// Loads a library, given by its path or name, for the rest of the process. Null on failure.
void* load(const char* library);

// The symbol in a library that load() returned. Null if it has no such symbol.
void* symbol_in(void* library, const char* symbol);

// The library through which torch's OpenMP runtime can be found with symbol_of(). Null if unknown.
const char* openmp_of_torch();

// The number of CPUs that threads started by this thread may run on; 0 if unknown.
int64_t permitted_cpus();

// The size of a core's level 2 cache; 0 if unknown.
int64_t level_2_cache_bytes();

// Requests permission for AMX tiles, which Linux requires; returns whether it is granted. The permission is permanent.
bool request_tiles();

// Memory aligned to `alignment`, a power of two that divides `bytes`; null on failure. Free it with release_aligned().
void* allocate_aligned(size_t alignment, size_t bytes);
void release_aligned(void* memory);

// Registers functions to be called around a fork, like pthread_atfork. Does nothing on Windows, which has no fork.
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

// A regular file mapped into memory. The mapping is private: writes don't change the file. The path is UTF-8. Throws
// std::runtime_error, with a message that doesn't contain the path, if it can't be opened, read or mapped, or isn't a
// regular file.
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
