#include "tensor_file.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "../system/system.h"
#include "json.h"

namespace fourfold::model {
namespace {

constexpr uint64_t longest_header = 100'000'000;  // the limit of safetensors
constexpr size_t most_dimensions = 64;            // the limit of torch's kernels

struct NamedDtype {
  const char* in_file;
  const char* in_torch;
  at::ScalarType dtype;
};

constexpr NamedDtype dtypes[] = {
    {"BOOL", "bool", at::kBool},        {"U8", "uint8", at::kByte},          {"I8", "int8", at::kChar},
    {"U16", "uint16", at::kUInt16},     {"I16", "int16", at::kShort},        {"U32", "uint32", at::kUInt32},
    {"I32", "int32", at::kInt},         {"U64", "uint64", at::kUInt64},      {"I64", "int64", at::kLong},
    {"F16", "float16", at::kHalf},      {"BF16", "bfloat16", at::kBFloat16}, {"F32", "float32", at::kFloat},
    {"F64", "float64", at::kDouble},    {"F8_E4M3", "float8_e4m3fn", at::kFloat8_e4m3fn},
    {"F8_E5M2", "float8_e5m2", at::kFloat8_e5m2},
    {nullptr, "complex32", at::kComplexHalf}, {nullptr, "complex64", at::kComplexFloat},
    {nullptr, "complex128", at::kComplexDouble}};

at::ScalarType dtype_in_file(const std::string& name) {
  for (const NamedDtype& one : dtypes) {
    if (one.in_file != nullptr && name == one.in_file) return one.dtype;
  }
  throw Refused("expected a dtype that fourfold knows, but got " + shown(name) + "; a newer fourfold may know it");
}

constexpr const char* cut_off = "; the file may have been cut off";

std::shared_ptr<system::MappedFile> mapping_of(const std::string& path) {
  std::shared_ptr<system::MappedFile> mapping;
  try {
    mapping = std::make_shared<system::MappedFile>(path);
  } catch (const std::runtime_error& error) {
    throw Refused(error.what());
  }
  if (mapping->size() < sizeof(uint64_t)) {
    throw Refused("expected at least 8 bytes, but got " + std::to_string(mapping->size()) + cut_off);
  }
  return mapping;
}

struct Entry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  uint64_t begin;
  uint64_t end;
};

uint64_t bytes_of(const Entry& entry) {
  uint64_t bytes = c10::elementSize(entry.dtype);
  for (const int64_t size : entry.sizes) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      throw Refused("expected the shape of " + shown(entry.name) + " to have fewer elements");
    }
  }
  return bytes;
}

Entry entry_of(const std::string& name, const Json& described) {
  Entry entry{name, dtype_in_file(described.at("dtype", "a tensor").as_string("a dtype")), {}, 0, 0};
  for (const Json& size : described.at("shape", "a tensor").as_list("a shape")) {
    entry.sizes.push_back(static_cast<int64_t>(size.as_index("a size", std::numeric_limits<int64_t>::max())));
  }
  if (entry.sizes.size() > most_dimensions) {
    throw Refused("expected " + shown(name) + " to have at most " + std::to_string(most_dimensions) + " dimensions");
  }
  const auto& offsets = described.at("data_offsets", "a tensor").as_list("data_offsets");
  if (offsets.size() != 2 || described.as_object("a tensor").size() != 3) {
    throw Refused("expected " + shown(name) + " to have dtype, shape and two data_offsets alone");
  }
  entry.begin = offsets[0].as_index("an offset", std::numeric_limits<int64_t>::max());
  entry.end = offsets[1].as_index("an offset", std::numeric_limits<int64_t>::max());
  if (entry.begin > entry.end || entry.end - entry.begin != bytes_of(entry)) {
    throw Refused("expected the data_offsets of " + shown(name) + " to be " + std::to_string(bytes_of(entry)) +
                  " bytes apart, as its shape and dtype need");
  }
  return entry;
}

// Checks that the tensors' bytes fill the file without overlaps and gaps.
void expect_dense(std::vector<Entry> entries, uint64_t bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != end) throw Refused("expected the bytes of " + shown(entry.name) + " to begin at " + std::to_string(end));
    end = entry.end;
  }
  if (end != bytes) {
    throw Refused("expected " + std::to_string(end) + " bytes behind the header, but got " + std::to_string(bytes) +
                  (bytes < end ? cut_off : ""));
  }
}

at::Tensor tensor_of(const Entry& entry, const std::shared_ptr<system::MappedFile>& mapping, char* data) {
  const auto options = at::TensorOptions().dtype(entry.dtype);
  if (entry.begin == entry.end) return at::empty(entry.sizes, options);
  char* const begin = data + entry.begin;
  const size_t bytes = entry.end - entry.begin;
  if (entry.dtype == at::kBool && std::any_of(begin, begin + bytes, [](char byte) { return byte != 0 && byte != 1; })) {
    throw Refused("expected the bytes of " + shown(entry.name) + ", a tensor of booleans, to be 0 or 1");
  }
  if (reinterpret_cast<uintptr_t>(begin) % c10::elementSize(entry.dtype) == 0) {
    return at::from_blob(begin, entry.sizes, [mapping](void*) {}, options);
  }
  const at::Tensor copy = at::empty(entry.sizes, options);
  std::memcpy(copy.mutable_data_ptr(), begin, bytes);
  return copy;
}

}  // namespace

at::ScalarType dtype_of(const std::string& name) {
  for (const NamedDtype& one : dtypes) {
    if (name == one.in_torch) return one.dtype;
  }
  throw Refused("expected a dtype that fourfold knows, but got " + shown(name) + "; a newer fourfold may know it");
}

std::string name_of(at::ScalarType dtype) {
  for (const NamedDtype& one : dtypes) {
    if (dtype == one.dtype) return one.in_torch;
  }
  return c10::toString(dtype);
}

TensorFile::TensorFile(const std::string& path) {
  const auto mapping = mapping_of(path);
  uint64_t length = 0;
  for (size_t k = 0; k < sizeof length; ++k) length |= uint64_t{static_cast<unsigned char>(mapping->data()[k])} << (8 * k);
  const uint64_t rest = mapping->size() - sizeof length;
  if (length > rest || length > longest_header) {
    throw Refused("expected a safetensors header of at most " + std::to_string(std::min(rest, longest_header)) +
                  " bytes, but its length is given as " + std::to_string(length) + cut_off +
                  ", or be of another format");
  }
  const Json header = Json::parse({mapping->data() + sizeof length, static_cast<size_t>(length)});
  std::vector<Entry> entries;
  for (const auto& [name, described] : header.as_object("the header")) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : described.as_object("__metadata__")) metadata[key] = value.as_string("metadata");
    } else {
      entries.push_back(entry_of(name, described));
    }
  }
  expect_dense(entries, rest - length);
  char* const data = mapping->data() + sizeof length + length;
  for (const Entry& entry : entries) tensors[entry.name] = tensor_of(entry, mapping, data);
}

}  // namespace fourfold::model
