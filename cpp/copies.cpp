// Detects two copies of libfourfold in one process, for example one that a program links and one in the Python package.
#include <fourfold/library.h>

#include <cstdio>
#include <string>

#include "ops/registration.h"
#include "system/system.h"

namespace {

bool registered = false;

// The file of another copy that has registered its operators, or "".
std::string other_copy() {
  const fourfold::system::LoadedFile own = fourfold::system::file_of(&registered);
  for (const std::string& path : fourfold::system::loaded_paths()) {
    if (path.find("fourfold", path.find_last_of("/\\") + 1) == std::string::npos) continue;
    const void* version = fourfold::system::symbol_of(path.c_str(), "fourfold_abi_version");
    if (version == nullptr || fourfold::system::file_of(version).base == own.base) continue;
    // Older libraries without this function have registered their operators as soon as they are loaded.
    void* has_registered = fourfold::system::symbol_of(path.c_str(), "fourfold_has_registered");
    if (has_registered == nullptr || reinterpret_cast<int (*)()>(has_registered)() != 0) return path;
  }
  return "";
}

// Called first during static initialisation, by the library's first registration.
std::string look_for_copies() {
  const std::string other = other_copy();
  if (other.empty()) {
    registered = true;
    return "";
  }
  const std::string path = fourfold::system::file_of(&registered).path;
  const std::string own = path.empty() ? "this library" : path;
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
