// Errors: one sentence, made of strings and numbers.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace fourfold {

// Not with iostreams (system/text.h explains why).
inline void append(std::string& sentence, std::string_view part) { sentence += part; }
void append(std::string& sentence, double part);
template <typename Integer>
  requires(std::is_integral_v<Integer> && !std::is_same_v<Integer, char>)
void append(std::string& sentence, Integer part) {
  sentence += std::to_string(part);
}

// Throws std::runtime_error.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string sentence;
  (append(sentence, parts), ...);
  throw std::runtime_error(sentence);
}

}  // namespace fourfold
