#include "program/operator.h"

#include <fourfold/program.h>
#include <torch/headeronly/core/DeviceType.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "ops/aten.h"
#include "ops/registration.h"

namespace fourfold {
namespace {

// The maximum number of cached programs; a full cache is cleared.
constexpr size_t most_programs = 4096;

using Program = std::shared_ptr<fourfold_program>;

Program program_of(std::string text, Place place) {
  static std::mutex mutex;
  static std::map<std::tuple<int32_t, int32_t, std::string>, Program> programs;
  const std::scoped_lock lock(mutex);
  const std::tuple key(place.type, place.index, std::move(text));
  const std::string& known = std::get<std::string>(key);
  const auto found = programs.find(key);
  if (found != programs.end()) return found->second;
  const auto length = static_cast<int64_t>(known.size());
  const Program made(fourfold_program_new(known.data(), length, place.type, place.index), fourfold_program_delete);
  if (made == nullptr) fail(fourfold_program_error());
  if (programs.size() >= most_programs) programs.clear();
  return programs[key] = made;
}

// The tensors' device, or the CPU if there are none.
Place place_of_call(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return {static_cast<int32_t>(torch::headeronly::DeviceType::CPU), 0};
  for (const Tensor& tensor : tensors) {
    int32_t layout = 0;
    check_call(aoti_torch_get_layout(tensor.get(), &layout), "the layout of a tensor");
    if (layout != aoti_torch_layout_strided()) fail("program: expected strided tensors, but got another layout");
    expect_place("program", {{"the first tensor", &tensors[0]}, {"another", &tensor}});
  }
  return place_of(tensors[0]);
}

// The inputs of one call; it owns the scalars' 8 bytes.
class Inputs {
 public:
  Inputs(const fourfold_program* program, const std::vector<Tensor>& tensors, const std::vector<double>& floats,
         const std::vector<int64_t>& integers)
      : bits_(static_cast<size_t>(fourfold_program_inputs(program))) {
    size_t tensor = 0, floating = 0, integer = 0;
    for (size_t k = 0; k < bits_.size(); ++k) {
      const int32_t number = fourfold_program_number(program, static_cast<int32_t>(k));
      if (number < 0) {
        add(next(tensors, tensor, "tensors"));
      } else if (is_floating(static_cast<ScalarType>(number))) {
        add(next(floats, floating, "floats"), static_cast<ScalarType>(number), bits_[k]);
      } else {
        add(next(integers, integer, "integers"), static_cast<ScalarType>(number), bits_[k]);
      }
    }
    if (tensor + floating + integer != tensors.size() + floats.size() + integers.size()) {
      fail("program: expected ", tensor, " tensors, ", floating, " floats and ", integer, " integers, but got ",
           tensors.size(), ", ", floats.size(), " and ", integers.size());
    }
  }

  const fourfold_tensor* data() const { return given_.data(); }
  int32_t size() const { return static_cast<int32_t>(given_.size()); }

 private:
  template <typename T>
  static const T& next(const std::vector<T>& from, size_t& k, const char* what) {
    if (k == from.size()) fail("program: expected more ", what, " than the ", from.size(), " that were given");
    return from[k++];
  }

  static const void* base_of(const Tensor& x) { return data_of(x).base; }

  void add(const Tensor& x) {
    given_.push_back({const_cast<void*>(x.const_data_ptr()), static_cast<int32_t>(x.scalar_type()),
                      static_cast<int32_t>(x.dim()), x.sizes().data(), x.strides().data(), const_cast<void*>(base_of(x))});
  }

  template <typename T>
  void add(T number, ScalarType dtype, uint64_t& bits) {
    const auto put = [&](auto value) { std::memcpy(&bits, &value, sizeof value); };
    switch (dtype) {
      case ScalarType::Bool: put(number != 0); break;
      case ScalarType::Int: put(within<int32_t>(number)); break;
      case ScalarType::Float: put(static_cast<float>(number)); break;
      default: put(number);
    }
    given_.push_back({&bits, static_cast<int32_t>(dtype), 0, nullptr, nullptr, nullptr});
  }

  template <typename Narrow, typename T>
  static Narrow within(T number) {
    using Limits = std::numeric_limits<Narrow>;
    if (number < Limits::min() || number > Limits::max()) fail("program: expected an integer of 32 bits, but got ", number);
    return static_cast<Narrow>(number);
  }

  std::vector<uint64_t> bits_;
  std::vector<fourfold_tensor> given_;
};

struct Outputs {
  Place place;
  std::vector<Tensor> tensors;

  static void* allocate(
      void* context, int32_t, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides) {
    auto& own = *static_cast<Outputs*>(context);
    own.tensors.push_back(empty(own.place, sizes, strides, dim, static_cast<ScalarType>(dtype)));
    return own.tensors.back().mutable_data_ptr();
  }
};

}  // namespace

std::vector<Tensor> run_program(
    StringHandle text, const std::vector<Tensor>& tensors, const std::vector<double>& floats,
    const std::vector<int64_t>& integers, int64_t generator) {
  std::string program_text = text_of(text);
  Outputs outputs{place_of_call(tensors), {}};
  const Program program = program_of(std::move(program_text), outputs.place);
  fourfold_program_generate(program.get(), static_cast<int32_t>(generator));
  const Inputs inputs(program.get(), tensors, floats, integers);
  const int32_t failed =
      fourfold_program_run(program.get(), inputs.data(), inputs.size(), nullptr, &Outputs::allocate, &outputs);
  if (failed == 2) fail("program: expected memory for the outputs, but there is none");
  if (failed != 0) fail(fourfold_program_error());
  return std::move(outputs.tensors);
}

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def("_run_program(str text, Tensor[] tensors, float[] floats, int[] integers, int generator=1) -> Tensor[]");
}

// A program without tensors has no device to dispatch on.
FOURFOLD_KERNELS(CompositeExplicitAutograd, m) { m.impl("_run_program", TORCH_BOX(&fourfold::run_program)); }
