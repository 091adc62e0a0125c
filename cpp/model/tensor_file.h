// A file in safetensors' format: the length of a header, the header in JSON, and the tensors' bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace fourfold::model {

// torch's, of a name without "torch.", such as float32; throws Refused for others.
at::ScalarType dtype_of(const std::string& name);
std::string name_of(at::ScalarType dtype);

struct TensorFile {
  std::map<std::string, std::string> metadata;
  // In the file's memory, which stays mapped as long as one of them lives; writes stay this process's. Of an offset that doesn't
  // suit the dtype, a copy.
  std::map<std::string, at::Tensor> tensors;

  // Reads a regular file. Throws Refused where it is none, or not in this format.
  explicit TensorFile(const std::string& path);
};

}  // namespace fourfold::model
