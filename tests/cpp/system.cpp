// Runs the operating system calls that fourfold uses, and prints each wrong result. The arguments: a file that holds
// the bytes "0123456789", an empty file, and a folder.
#include "system/system.h"
#include "system/text.h"

#include <clocale>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#if defined(_WIN32)
#define EXPORTED extern "C" __declspec(dllexport)
constexpr const char* library = "kernel32.dll";
constexpr const char* symbol_of_library = "GetTickCount";
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#if defined(__APPLE__)
constexpr const char* library = "/usr/lib/libSystem.B.dylib";
#else
constexpr const char* library = "libc.so.6";
#endif
constexpr const char* symbol_of_library = "getpid";
#endif

using namespace fourfold::system;

EXPORTED int exported_for_the_test() { return 17; }

static int failures = 0;

static void expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("not so: %s\n", what);
}

static std::string refusal(const char* path) {
  try {
    const MappedFile file(path);
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

static void ask_for_files(const char* digits, const char* empty, const char* folder) {
  {
    const MappedFile file(digits);
    expect(file.size() == 10 && std::memcmp(file.data(), "0123456789", 10) == 0, "a mapped file has the file's bytes");
    file.data()[0] = 'x';
    std::ifstream again(digits, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(again), {}};
    expect(bytes == "0123456789" && file.data()[0] == 'x', "writes stay this process's");
  }
  const MappedFile nothing(empty);
  expect(nothing.size() == 0 && nothing.data() == nullptr, "an empty file has no bytes");
  expect(refusal("/no/such/file").find("it can't be opened: ") == 0, "a missing file is refused");
  expect(!refusal(folder).empty(), "a folder is refused");
}

static void ask_for_symbols() {
  const LoadedFile own = file_of(&failures);
  expect(!own.path.empty() && own.base != nullptr, "data of the program lie in a file");
  const LoadedFile code = file_of(reinterpret_cast<const void*>(&expect));
  expect(code.path == own.path && code.base == own.base, "so does its code");
  expect(symbol_of(library, symbol_of_library) != nullptr, "a loaded library's symbol is found");
  expect(symbol_of(library, "fourfold_has_no_such_symbol") == nullptr, "it has no other symbols");
  expect(symbol_of("libfourfold_of_nobody.so", symbol_of_library) == nullptr, "a library that is not loaded has none");
  void* const loaded = load(library);
  expect(loaded != nullptr && symbol_in(loaded, symbol_of_library) == symbol_of(library, symbol_of_library), "a library can be loaded");
  expect(loaded != nullptr && symbol_in(loaded, "fourfold_has_no_such_symbol") == nullptr, "which has no other symbols either");
  expect(load("libfourfold_of_nobody.so") == nullptr, "a missing library can't");
  const LoadedFile other = file_of(symbol_of(library, symbol_of_library));
  expect(other.base != nullptr && other.base != own.base, "the symbol lies in another file");
  bool is_listed = false;
  for (const std::string& path : loaded_paths()) is_listed = is_listed || path == other.path;
  expect(is_listed, "that file is listed");
  const auto exported = reinterpret_cast<int (*)()>(symbol_of_process("exported_for_the_test"));
  expect(exported != nullptr && exported() == 17, "a symbol of the program is found in the process");
  expect(symbol_of_process("fourfold_has_no_such_symbol") == nullptr, "and no other");
}

static void ask_for_memory_and_processors() {
  for (const size_t alignment : {size_t{64}, size_t{4096}}) {
    void* const memory = allocate_aligned(alignment, 8192);
    expect(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % alignment == 0, "memory is aligned");
    std::memset(memory, 1, 8192);
    release_aligned(memory);
  }
  expect(allocate_aligned(64, size_t{1} << 62) == nullptr, "memory that no machine has is refused");
  release_aligned(nullptr);
  expect(permitted_cpus() >= 0 && permitted_cpus() < 100'000, "CPUs are countable");
  expect(level_2_cache_bytes() == 0 || level_2_cache_bytes() >= 16 * 1024, "a cache has kilobytes");
  at_fork([] {}, [] {}, [] {});
}

// Run in the locale "C", and then in one with a decimal comma if the system has it.
static void ask_for_numbers() {
  const auto reads = [](const char* word, double number) {
    const auto found = parse_double(word);
    expect(found == number && std::signbit(*found) == std::signbit(number), word);
  };
  reads("0.5", 0.5);
  reads("1e+30", 1e30);
  reads("-1E-5", -1e-5);
  reads("12", 12);
  reads("-0.0", -0.0);
  reads("0e999", 0);
  reads("5e-324", 0x1p-1074);
  reads("-1.1125369292536007e-308", -0x1p-1023);
  reads("1.7976931348623157e308", 0x1.fffffffffffffp1023);
  for (const char* word : {"1e309", "-1e309", "2e-324", "1e-400", "inf", "nan", "0x1p3", "0,5", "0.5.", "+1", " 1", "1 ", "1e", "-", ""}) {
    expect(!parse_double(word).has_value(), word);
  }
  expect(format_double(-1.5) == "-1.5" && format_double(1234567) == "1.23457e+06" && format_double(0) == "0", "six digits");
  expect(format_double(HUGE_VAL) == "inf" && format_double(std::numeric_limits<double>::quiet_NaN()) == "nan", "numbers that are none");
}

static void ask_for_parts() {
  using Parts = std::vector<std::string_view>;
  expect(split("", ',').empty() && split("a", ',') == Parts{"a"}, "a text without separators is one part");
  expect(split("a,,b,", ',') == Parts{"a", "", "b"}, "a separator ends a part");
}

int main(int, char** words) {
  ask_for_files(words[1], words[2], words[3]);
  ask_for_symbols();
  ask_for_memory_and_processors();
  ask_for_parts();
  ask_for_numbers();
  for (const char* name : {"de_DE.UTF-8", "de-DE"}) {
    if (std::setlocale(LC_ALL, name) == nullptr) continue;
    ask_for_numbers();
    break;
  }
  std::setlocale(LC_ALL, "C");
  std::printf("%lld CPUs, %lld bytes of cache\n", static_cast<long long>(permitted_cpus()), static_cast<long long>(level_2_cache_bytes()));
  return failures != 0;
}
