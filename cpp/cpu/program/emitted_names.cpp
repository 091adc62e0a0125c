#include "cpu/program/emitted_names.h"

#include <cctype>

namespace fourfold::cpu {
namespace {

// Keywords, what emitted code says itself, and macros.
constexpr const char* taken[] = {
    "alignas", "alignof", "and", "and_eq", "asm", "assert", "auto", "bitand", "bitor", "bool", "boolean", "break",
    "case", "catch", "char", "char16_t", "char32_t", "char8_t", "class", "co_await", "co_return", "co_yield", "compl",
    "concept", "const", "const_cast", "consteval", "constexpr", "constinit", "continue", "count", "decltype",
    "default", "delete", "do", "double", "dynamic_cast", "else", "enum", "errno", "explicit", "export", "extern",
    "false", "float", "float32", "float64", "for", "frame", "friend", "goto", "if", "inline", "int", "int16_t",
    "int32", "int32_t", "int64", "int64_t", "int8_t", "k", "lanes", "left", "long", "look_ahead", "mutable", "n",
    "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "number", "op", "operator", "or", "or_eq", "private",
    "protected", "public", "reduce", "register", "reinterpret_cast", "requires", "return", "short", "signed",
    "sizeof", "static", "static_assert", "static_cast", "stderr", "stdin", "stdout", "struct", "switch", "template",
    "this", "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "uint8_t", "union", "unsigned",
    "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq"};

}  // namespace

EmittedNames::EmittedNames(const program::Program& program) : used_(std::begin(taken), std::end(taken)) {
  for (const auto& value : program.values) {
    // Types, functions' parameters and macros that headers bring along begin otherwise.
    const bool plain = std::islower(static_cast<unsigned char>(value.name[0])) != 0;
    values_.push_back(unique(plain ? value.name : "v_" + value.name));
  }
}

std::string EmittedNames::unique(std::string name) {
  while (!used_.insert(name).second) name += '_';
  return name;
}

}  // namespace fourfold::cpu
