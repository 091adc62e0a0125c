// Numbers as text, and lists of words, without iostreams: libtorch.so of torch 2.11's CUDA build exports parts of
// libstdc++'s iostreams (std::ostringstream's constructor). A stream made of those and of the system's parts crashes when
// it formats or reads a number. No result depends on the process's locale, which Python programs may change.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// libc++ lacks from_chars for floating point before LLVM 20, and on older versions of macOS to_chars too.
#if !defined(__cpp_lib_to_chars) && !defined(FOURFOLD_LACKS_CHARS)
#define FOURFOLD_LACKS_CHARS
#endif
#if defined(FOURFOLD_LACKS_CHARS)
#include <locale.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include <cstdio>
#include <cstdlib>
#endif

namespace fourfold::system {

#if defined(FOURFOLD_LACKS_CHARS)
// While it exists, this thread uses the locale "C".
class PlainLocale {
 public:
  PlainLocale() : before_(uselocale(plain())) {}
  ~PlainLocale() { uselocale(before_); }
  PlainLocale(const PlainLocale&) = delete;
  PlainLocale& operator=(const PlainLocale&) = delete;

 private:
  static locale_t plain() {
    static const locale_t made = newlocale(LC_ALL_MASK, "C", nullptr);
    return made;
  }

  locale_t before_;
};
#endif

// The float64 that the whole word denotes: digits, with a minus, a point and an exponent if any. Nothing for other
// words, such as inf, and for numbers that float64 would hold as infinity or, although they aren't 0, as 0.
inline std::optional<double> parse_double(std::string_view word) {
  if (word.find_first_not_of("-+.0123456789eE") != word.npos || word.substr(0, 1) == "+") return std::nullopt;
  double number = 0;
#if defined(FOURFOLD_LACKS_CHARS)
  const PlainLocale plain;
  const std::string terminated(word);
  char* end = nullptr;
  number = std::strtod(terminated.c_str(), &end);
  const auto length = static_cast<size_t>(end - terminated.c_str());
#else
  // The error isn't checked: an implementation may report a subnormal number as out of range.
  const char* const end = std::from_chars(word.data(), word.data() + word.size(), number).ptr;
  const auto length = static_cast<size_t>(end - word.data());
#endif
  const bool is_zero = word.substr(0, word.find_first_of("eE")).find_first_of("123456789") == word.npos;
  if (length == 0 || length != word.size() || !std::isfinite(number) || (number == 0) != is_zero) return std::nullopt;
  return number;
}

// The number with 6 significant digits, as printf's %g.
inline std::string format_double(double number) {
  char text[32];
#if defined(FOURFOLD_LACKS_CHARS)
  const PlainLocale plain;
  return {text, static_cast<size_t>(std::snprintf(text, sizeof text, "%g", number))};
#else
  return {text, std::to_chars(text, text + sizeof text, number, std::chars_format::general, 6).ptr};
#endif
}

// The parts of a text between separators. A separator at the end adds no empty part, as with lines.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

}  // namespace fourfold::system
