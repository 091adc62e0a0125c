// The linker's name of a kernel, read from its file, so that it needn't be exported.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#pragma GCC visibility push(hidden)

namespace gpusim {

// Functions by their offset in the file's image.
inline std::map<uintptr_t, std::string> functions_of(const char* path) {
  std::map<uintptr_t, std::string> found;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat facts {};
  if (file < 0 || fstat(file, &facts) != 0) return found;
  const auto size = static_cast<size_t>(facts.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (memory == MAP_FAILED) return found;
  const char* bytes = static_cast<const char*>(memory);
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes + header.e_shoff);
  for (int s = 0; s < header.e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes + sections[s].sh_offset);
    const char* names = bytes + sections[sections[s].sh_link].sh_offset;
    for (size_t k = 0; k < sections[s].sh_size / sizeof(Elf64_Sym); ++k) {
      if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC) found[symbols[k].st_value] = names + symbols[k].st_name;
    }
  }
  munmap(memory, size);
  return found;
}

// Empty if the file has been stripped.
inline std::string symbol_of(const void* kernel) {
  static std::mutex mutex;
  static auto* const files = new std::map<std::string, std::map<uintptr_t, std::string>>;
  Dl_info info{};
  if (dladdr(kernel, &info) == 0) return "";
  const std::lock_guard lock(mutex);
  // The program itself may have been started without a path.
  const bool is_program = access(info.dli_fname, R_OK) != 0;
  const std::string path = is_program ? "/proc/self/exe" : info.dli_fname;
  auto found = files->find(path);
  if (found == files->end()) found = files->emplace(path, functions_of(path.c_str())).first;
  const auto offset = reinterpret_cast<uintptr_t>(kernel) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  // In a program at a fixed address, symbols are addresses, not offsets.
  for (const uintptr_t value : {offset, reinterpret_cast<uintptr_t>(kernel)}) {
    if (const auto symbol = found->second.find(value); symbol != found->second.end()) return symbol->second;
  }
  return "";
}

inline std::string kernel_name(const void* kernel) {
  const std::string symbol = symbol_of(kernel);
  if (symbol.empty()) return "a kernel";
  int status = 0;
  char* plain = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  const std::string name = plain != nullptr ? plain : symbol;
  std::free(plain);
  return name;
}

}  // namespace gpusim

#pragma GCC visibility pop
