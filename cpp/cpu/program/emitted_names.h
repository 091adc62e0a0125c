// What a program's values are called in C++.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "program/program.h"

namespace fourfold::cpu {

// As in the program, but where C++ or emitted code means something else by it.
class EmittedNames {
 public:
  explicit EmittedNames(const program::Program& program);

  const std::string& of(int value) const { return values_[value]; }
  // For something that belongs to the value.
  std::string with(const std::string& prefix, int value) { return unique(prefix + values_[value]); }

 private:
  std::string unique(std::string name);

  std::set<std::string> used_;
  std::vector<std::string> values_;
};

}  // namespace fourfold::cpu
