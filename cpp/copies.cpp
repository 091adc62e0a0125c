// Two copies of libfourfold in one process: a program links one, and Python's package brings another, say.
#include <dlfcn.h>
#include <fourfold/library.h>
#if defined(__APPLE__)
#include <stdint.h>
extern "C" uint32_t _dyld_image_count();
extern "C" const char* _dyld_get_image_name(uint32_t);
#else
#include <link.h>
#endif

#include <cstdio>
#include <string>
#include <vector>

#include "ops/registration.h"

namespace {

bool registered = false;

std::vector<std::string> loaded_files() {
  std::vector<std::string> files;
#if defined(__APPLE__)
  for (uint32_t k = 0; k < _dyld_image_count(); ++k) {
    if (const char* name = _dyld_get_image_name(k)) files.emplace_back(name);
  }
#else
  const auto add = [](dl_phdr_info* info, size_t, void* to) {
    if (info->dlpi_name != nullptr) static_cast<std::vector<std::string>*>(to)->emplace_back(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(add, &files);
#endif
  return files;
}

Dl_info place_of(const void* symbol) {
  Dl_info place{};
  dladdr(symbol, &place);
  return place;
}

// The file of another copy that has registered its operators, or "".
std::string other_copy() {
  const Dl_info own = place_of(&registered);
  for (const std::string& file : loaded_files()) {
    if (file.find("fourfold", file.rfind('/') + 1) == std::string::npos) continue;
    void* library = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    const void* version = dlsym(library, "fourfold_abi_version");
    void* asks = dlsym(library, "fourfold_has_registered");
    dlclose(library);  // which stays loaded
    if (version == nullptr || place_of(version).dli_fbase == own.dli_fbase) continue;
    // Libraries from before there was that function have registered theirs as soon as they are loaded.
    if (asks == nullptr || reinterpret_cast<int (*)()>(asks)() != 0) return file;
  }
  return "";
}

// Asked first while the library is loaded, by whatever it registers first.
std::string look_for_copies() {
  const std::string other = other_copy();
  if (other.empty()) {
    registered = true;
    return "";
  }
  const Dl_info place = place_of(&registered);
  const std::string own = place.dli_fname == nullptr ? "this library" : place.dli_fname;
  std::string said = "fourfold: expected one libfourfold in a process, but " + own + " was loaded after " + other +
                     ", whose operators stay in use; link the program with the libfourfold of the Python package that it "
                     "imports (python -m fourfold --cmake-dir), and keep one of the two files";
  std::fprintf(stderr, "%s\n", said.c_str());
  return said;
}

}  // namespace

namespace fourfold {

const char* other_copy_error() {
  static const std::string said = look_for_copies();
  return said.empty() ? nullptr : said.c_str();
}

}  // namespace fourfold

int fourfold_has_registered() { return registered; }

const char* fourfold_other_copy_error() { return fourfold::other_copy_error(); }
