// The lines of a program's text, split into words, and the parsing of numbers, names and brackets. Errors give the
// number of the line.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "system/text.h"

namespace fourfold::program {

using Words = std::vector<std::string_view>;

class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  bool at_end() const { return rest_.empty(); }

  Words next_line() {
    ++line_;
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    Words words;
    while (true) {
      const size_t begin = line.find_first_not_of(' ');
      if (begin == line.npos) return words;
      line.remove_prefix(begin);
      const size_t length = std::min(line.find(' '), line.size());
      words.push_back(line.substr(0, length));
      line.remove_prefix(length);
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw std::invalid_argument("program: line " + std::to_string(line_) + ": " + what);
  }

  void expect(bool holds, const std::string& what, std::string_view got) const {
    if (!holds) refuse("expected " + what + ", but got " + quoted(got));
  }

  int64_t integer(std::string_view word, const char* what) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    expect(error == std::errc() && end == word.data() + word.size(), what, word);
    return value;
  }

  double floating(std::string_view word) const {
    const bool negative = !word.empty() && word[0] == '-';
    const std::string_view digits = word.substr(negative);
    if (digits == "inf") return negative ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    if (digits == "nan") return std::numeric_limits<double>::quiet_NaN();
    const std::optional<double> value = system::parse_double(word);
    expect(value.has_value(), "a number", word);
    return *value;
  }

  std::string name(std::string_view word) const {
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    const bool holds = !word.empty() && word.size() <= longest && is_letter(word[0]) &&
                       std::all_of(word.begin(), word.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
    expect(holds, "a name of letters, digits and _", word);
    return std::string(word);
  }

  // The words between [ and ].
  Words bracketed(const Words& words, size_t& at) const {
    Words result;
    if (at >= words.size() || words[at][0] != '[') refuse("expected [");
    for (bool first = true;; first = false) {
      if (at >= words.size()) refuse("expected ]");
      std::string_view word = words[at++];
      if (first) word.remove_prefix(1);
      const bool last = !word.empty() && word.back() == ']';
      if (last) word.remove_suffix(1);
      if (!word.empty()) result.push_back(word);
      if (last) return result;
    }
  }

 protected:
  int line_ = 0;

 private:
  static constexpr size_t longest = 60;  // characters of a name, or of a word that an error quotes

  static std::string quoted(std::string_view word) {
    std::string shown;
    for (const char c : word.substr(0, longest)) shown += c >= ' ' && c <= '~' ? c : '?';
    return "'" + shown + (word.size() > longest ? "…'" : "'");
  }

  std::string_view rest_;
};

}  // namespace fourfold::program
