// JSON as model files hold it, read strictly: UTF-8, no duplicate keys, integers of 64 bits, nothing behind the value.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fourfold::model {

// What a file can't be loaded for, in a sentence without the file's name.
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

  // Each throws Refused for a value of another kind, in a sentence about `what`.
  bool as_bool(const char* what) const;
  int64_t as_integer(const char* what) const;
  size_t as_index(const char* what, size_t end) const;  // an integer from 0 to end - 1
  double as_number(const char* what) const;             // of integers too
  const std::string& as_string(const char* what) const;
  const std::vector<Json>& as_list(const char* what) const;
  const std::vector<std::pair<std::string, Json>>& as_object(const char* what) const;
  // Of an object. The first throws Refused where it has no such member, the second gives null.
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

// A word of the file as an error shows it: short, and printable.
std::string shown(std::string_view word);

}  // namespace fourfold::model
