// A file in the safetensors format: the length of the header, the header in JSON, and the tensors' bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace fourfold::model {

// The dtype of a name without "torch.", such as float32. Throws Refused for unknown names.
at::ScalarType dtype_of(const std::string& name);
std::string name_of(at::ScalarType dtype);

struct TensorFile {
  std::map<std::string, std::string> metadata;
  // Tensors in the mapped file, which stays mapped while one of them exists. The mapping is private: writes don't
  // change the file. Misaligned tensors are copied.
  std::map<std::string, at::Tensor> tensors;

  // Reads a regular file. Throws Refused for other files and other formats.
  explicit TensorFile(const std::string& path);
};

}  // namespace fourfold::model
