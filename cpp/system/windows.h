// system.h on Windows. tests/cpp/system.cpp runs it under Wine; fourfold as a whole has never run on Windows.
#pragma once

#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#if !defined(WIN32_LEAN_AND_MEAN)
#define WIN32_LEAN_AND_MEAN
#endif
#define PSAPI_VERSION 2  // with its functions in kernel32
#include <malloc.h>
#include <windows.h>
// Must come after windows.h:
#include <psapi.h>

#include <bit>
#include <stdexcept>
#include <system_error>

namespace fourfold::system {

inline std::wstring wide(const std::string& text) {
  const int size = static_cast<int>(text.size());
  std::wstring to(static_cast<size_t>(MultiByteToWideChar(CP_UTF8, 0, text.data(), size, nullptr, 0)), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, text.data(), size, to.data(), static_cast<int>(to.size()));
  return to;
}

inline std::string narrow(const std::wstring& text) {
  const int size = static_cast<int>(text.size());
  const int bytes = WideCharToMultiByte(CP_UTF8, 0, text.data(), size, nullptr, 0, nullptr, nullptr);
  std::string to(static_cast<size_t>(bytes), '\0');
  WideCharToMultiByte(CP_UTF8, 0, text.data(), size, to.data(), bytes, nullptr, nullptr);
  return to;
}

inline std::string path_of(HMODULE module) {
  std::wstring path(MAX_PATH, L'\0');
  for (;;) {
    const DWORD length = GetModuleFileNameW(module, path.data(), static_cast<DWORD>(path.size()));
    if (length < path.size()) return narrow(path.substr(0, length));
    path.resize(2 * path.size());
  }
}

inline std::vector<HMODULE> loaded_modules() {
  std::vector<HMODULE> modules(256);
  DWORD bytes = 0;
  for (;;) {
    const auto room = static_cast<DWORD>(modules.size() * sizeof(HMODULE));
    if (EnumProcessModules(GetCurrentProcess(), modules.data(), room, &bytes) == 0) return {};
    if (bytes <= room) break;
    modules.resize(bytes / sizeof(HMODULE) + 16);  // more may be loaded meanwhile
  }
  modules.resize(bytes / sizeof(HMODULE));
  return modules;
}

inline void* load(const char* library) { return LoadLibraryW(wide(library).c_str()); }

inline void* symbol_in(void* library, const char* symbol) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), symbol));
}

inline LoadedFile file_of(const void* address) {
  HMODULE module = nullptr;
  constexpr DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  if (GetModuleHandleExW(flags, static_cast<const wchar_t*>(address), &module) == 0) return {};
  return {path_of(module), module};
}

inline std::vector<std::string> loaded_paths() {
  std::vector<std::string> paths;
  for (HMODULE module : loaded_modules()) paths.push_back(path_of(module));
  return paths;
}

inline void* symbol_of(const char* library, const char* symbol) {
  HMODULE const module = GetModuleHandleW(wide(library).c_str());
  return module == nullptr ? nullptr : symbol_in(module, symbol);
}

inline void* symbol_of_process(const char* symbol) {
  for (HMODULE module : loaded_modules()) {
    if (void* const found = symbol_in(module, symbol)) return found;
  }
  return nullptr;
}

inline const char* openmp_of_torch() { return "libiomp5md.dll"; }

inline int64_t permitted_cpus() {
  DWORD_PTR own = 0;
  DWORD_PTR all = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &own, &all) == 0) return 0;
  return std::popcount(static_cast<uint64_t>(own));  // 0 if the process runs in several groups of processors
}

inline int64_t level_2_cache_bytes() {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> facts(bytes / sizeof(SYSTEM_LOGICAL_PROCESSOR_INFORMATION));
  if (facts.empty() || GetLogicalProcessorInformation(facts.data(), &bytes) == 0) return 0;
  for (const auto& fact : facts) {
    if (fact.Relationship == RelationCache && fact.Cache.Level == 2) return fact.Cache.Size;
  }
  return 0;
}

// Windows allocates the tile state of each thread on demand.
inline bool request_tiles() { return true; }

inline void* allocate_aligned(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }
inline void release_aligned(void* memory) { _aligned_free(memory); }

inline void at_fork(void (*)(), void (*)(), void (*)()) {}

inline MappedFile::MappedFile(const std::string& path) {
  const auto reason = [] { return std::system_category().message(static_cast<int>(GetLastError())); };
  HANDLE const file = CreateFileW(
      wide(path).c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (file == INVALID_HANDLE_VALUE) throw std::runtime_error("it can't be opened: " + reason());
  std::string error;
  LARGE_INTEGER size{};
  if (GetFileType(file) != FILE_TYPE_DISK) {
    error = "it is no regular file";
  } else if (GetFileSizeEx(file, &size) == 0) {
    error = "it can't be read: " + reason();
  } else if (size.QuadPart > 0) {
    size_ = static_cast<size_t>(size.QuadPart);
    HANDLE const mapping = CreateFileMappingW(file, nullptr, PAGE_WRITECOPY, 0, 0, nullptr);
    void* const found = mapping == nullptr ? nullptr : MapViewOfFile(mapping, FILE_MAP_COPY, 0, 0, 0);
    if (found == nullptr) error = "it can't be mapped: " + reason();
    if (mapping != nullptr) CloseHandle(mapping);  // the view keeps the mapping open
    data_ = static_cast<char*>(found);
  }
  CloseHandle(file);
  if (!error.empty()) throw std::runtime_error(error);
}

inline MappedFile::~MappedFile() {
  if (data_ != nullptr) UnmapViewOfFile(data_);
}

}  // namespace fourfold::system
