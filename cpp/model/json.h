// A strict JSON parser for model files: UTF-8, no duplicate keys, 64-bit integers, nothing after the value.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fourfold::model {

// Why a file can't be loaded: a message without the file's name.
class Refused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  enum class Kind : uint8_t { null, boolean, integer, number, string, list, object };

  // Throws Refused.
  static Json parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }

  // Each throws Refused for a value of another kind, with a message about `what`.
  bool as_bool(const char* what) const;
  int64_t as_integer(const char* what) const;
  size_t as_index(const char* what, size_t end) const;  // an integer from 0 to end - 1
  double as_number(const char* what) const;             // accepts integers
  const std::string& as_string(const char* what) const;
  const std::vector<Json>& as_list(const char* what) const;
  const std::vector<std::pair<std::string, Json>>& as_object(const char* what) const;
  // A member of an object. If there is none, at() throws Refused and find() returns null.
  const Json& at(const char* key, const char* what) const;
  const Json* find(std::string_view key) const;

 private:
  friend class JsonParser;

  Kind kind_ = Kind::null;
  union {
    bool boolean_;
    int64_t integer_ = 0;
    double number_;
  };
  std::string string_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

// A word of the file as quoted in errors: shortened and printable.
std::string shown(std::string_view word);

}  // namespace fourfold::model
