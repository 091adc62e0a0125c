#include "json.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "../system/text.h"

namespace fourfold::model {

std::string shown(std::string_view word) {
  constexpr size_t longest = 60;
  std::string found = "'";
  for (const char c : word.substr(0, longest)) found += c >= ' ' && c <= '~' ? c : '?';
  return found + (word.size() > longest ? "…'" : "'");
}

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json parse() {
    Json made = value(0);
    skip_space();
    if (at_ != text_.size()) refuse("expected nothing behind the value");
    return made;
  }

 private:
  static constexpr int deepest = 100;
  static constexpr size_t most_values = size_t{1} << 22;

  [[noreturn]] void refuse(const char* what) const {
    throw Refused(std::string("invalid JSON at byte ") + std::to_string(at_) + ": " + what);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char expected) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  void expect_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) refuse("expected a value");
    at_ += word.size();
  }

  Json value(int depth) {
    if (depth > deepest) refuse("expected no deeper lists and objects");
    if (++values_ > most_values) refuse("expected fewer values");
    skip_space();
    Json made;
    switch (peek()) {
      case '{': object(made, depth); break;
      case '[': list(made, depth); break;
      case '"':
        made.kind_ = Json::Kind::string;
        made.string_ = string();
        break;
      case 't':
      case 'f':
        made.kind_ = Json::Kind::boolean;
        made.boolean_ = peek() == 't';
        expect_word(made.boolean_ ? "true" : "false");
        break;
      case 'n': expect_word("null"); break;
      default: number(made);
    }
    return made;
  }

  void list(Json& made, int depth) {
    made.kind_ = Json::Kind::list;
    ++at_;
    if (take(']')) return;
    do {
      made.items_.push_back(value(depth + 1));
    } while (take(','));
    if (!take(']')) refuse("expected ',' or ']'");
  }

  void object(Json& made, int depth) {
    made.kind_ = Json::Kind::object;
    ++at_;
    if (take('}')) return;
    std::unordered_set<std::string> known;
    do {
      skip_space();
      if (peek() != '"') refuse("expected a key");
      std::string key = string();
      if (!known.insert(key).second) refuse("expected no key twice");
      if (!take(':')) refuse("expected ':'");
      made.members_.emplace_back(std::move(key), value(depth + 1));
    } while (take(','));
    if (!take('}')) refuse("expected ',' or '}'");
  }

  void number(Json& made) {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    const size_t digits = at_;
    const auto skip_digits = [this] {
      const size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      return at_ > first;
    };
    if (!skip_digits() || (text_[digits] == '0' && at_ - digits > 1)) refuse("expected a value");
    bool is_integer = true;
    if (peek() == '.') {
      is_integer = false;
      ++at_;
      if (!skip_digits()) refuse("expected digits");
    }
    if (peek() == 'e' || peek() == 'E') {
      is_integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!skip_digits()) refuse("expected digits");
    }
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (is_integer) {
      made.kind_ = Json::Kind::integer;
      const auto result = std::from_chars(word.data(), word.data() + word.size(), made.integer_);
      if (result.ec != std::errc()) refuse("expected an integer of 64 bits");
      return;
    }
    made.kind_ = Json::Kind::number;
    const std::optional<double> number = system::parse_double(word);
    if (!number.has_value()) refuse("expected a number that float64 holds");
    made.number_ = *number;
  }

  std::string string() {
    std::string made;
    ++at_;
    while (true) {
      if (at_ == text_.size()) refuse("expected '\"'");
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') break;
      if (c < ' ') refuse("expected no control character in a string");
      if (c == '\\') {
        escape(made);
      } else if (c < 0x80) {
        made += text_[at_++];
      } else {
        multibyte(made);
      }
    }
    ++at_;
    return made;
  }

  void escape(std::string& made) {
    constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    ++at_;
    const char c = peek();
    ++at_;
    if (c == 'u') {
      uint32_t code = four_digits();
      if (code >= 0xdc00 && code < 0xe000) refuse("expected a whole character");
      if (code >= 0xd800 && code < 0xdc00) {
        if (text_.substr(at_, 2) != "\\u") refuse("expected a whole character");
        at_ += 2;
        const uint32_t low = four_digits();
        if (low < 0xdc00 || low >= 0xe000) refuse("expected a whole character");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      }
      append(made, code);
      return;
    }
    const size_t found = c == '\0' ? std::string_view::npos : letters.find(c);
    if (found == std::string_view::npos) refuse("expected an escape that JSON has");
    made += meanings[found];
  }

  uint32_t four_digits() {
    uint32_t code = 0;
    const std::string_view word = text_.substr(std::min(at_, text_.size()), 4);
    const auto result = std::from_chars(word.data(), word.data() + word.size(), code, 16);
    if (word.size() != 4 || result.ec != std::errc() || result.ptr != word.data() + 4) refuse("expected four digits");
    at_ += 4;
    return code;
  }

  static void append(std::string& made, uint32_t code) {
    const auto add = [&made](uint32_t byte) { made += static_cast<char>(byte); };
    if (code < 0x80) return add(code);
    if (code < 0x800) {
      add(0xc0 | code >> 6);
    } else if (code < 0x10000) {
      add(0xe0 | code >> 12);
      add(0x80 | (code >> 6 & 0x3f));
    } else {
      add(0xf0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3f));
      add(0x80 | (code >> 6 & 0x3f));
    }
    add(0x80 | (code & 0x3f));
  }

  void multibyte(std::string& made) {
    const auto first = static_cast<unsigned char>(text_[at_]);
    const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text_.size() - at_ < length) refuse("expected UTF-8");
    uint32_t code = first & (0xff >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text_[at_ + k]);
      if ((next & 0xc0) != 0x80) refuse("expected UTF-8");
      code = code << 6 | (next & 0x3f);
    }
    const uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) refuse("expected UTF-8");
    made.append(text_.substr(at_, length));
    at_ += length;
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t values_ = 0;
};

Json Json::parse(std::string_view text) { return JsonParser(text).parse(); }

namespace {

[[noreturn]] void refuse(const char* what, const std::string& expected, const Json& given) {
  constexpr const char* names[] = {"null", "a boolean", "an integer", "a number", "a string", "a list", "an object"};
  throw Refused("expected " + std::string(what) + " to be " + expected + ", but got " + names[static_cast<int>(given.kind())]);
}

}  // namespace

bool Json::as_bool(const char* what) const {
  if (!is(Kind::boolean)) refuse(what, "true or false", *this);
  return boolean_;
}

int64_t Json::as_integer(const char* what) const {
  if (!is(Kind::integer)) refuse(what, "an integer", *this);
  return integer_;
}

size_t Json::as_index(const char* what, size_t end) const {
  const int64_t found = as_integer(what);
  if (found < 0 || static_cast<uint64_t>(found) >= end) {
    throw Refused("expected " + std::string(what) + " to be at least 0 and below " + std::to_string(end) + ", but got " +
                  std::to_string(found));
  }
  return static_cast<size_t>(found);
}

double Json::as_number(const char* what) const {
  if (is(Kind::integer)) return static_cast<double>(integer_);
  if (!is(Kind::number)) refuse(what, "a number", *this);
  return number_;
}

const std::string& Json::as_string(const char* what) const {
  if (!is(Kind::string)) refuse(what, "a string", *this);
  return string_;
}

const std::vector<Json>& Json::as_list(const char* what) const {
  if (!is(Kind::list)) refuse(what, "a list", *this);
  return items_;
}

const std::vector<std::pair<std::string, Json>>& Json::as_object(const char* what) const {
  if (!is(Kind::object)) refuse(what, "an object", *this);
  return members_;
}

const Json& Json::at(const char* key, const char* what) const {
  if (!is(Kind::object)) refuse(what, "an object", *this);
  if (const Json* found = find(key)) return *found;
  throw Refused("expected " + std::string(what) + " to have '" + key + "', but it has none");
}

const Json* Json::find(std::string_view key) const {
  const auto found = std::find_if(members_.begin(), members_.end(), [key](const auto& one) { return one.first == key; });
  return found == members_.end() ? nullptr : &found->second;
}

}  // namespace fourfold::model
