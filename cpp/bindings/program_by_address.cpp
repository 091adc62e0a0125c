#include "program_by_address.h"

#include <fourfold/program.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Delete {
  void operator()(fourfold_program* program) const { fourfold_program_delete(program); }
};

using Address = std::uintptr_t;
using Sizes = std::vector<int64_t>;

// (address, dtype's number, sizes, strides) of each tensor; a number is one whose address is that of its 8 bytes.
using Given = std::tuple<Address, int32_t, Sizes, Sizes>;

class Program {
 public:
  explicit Program(const std::string& text) : program_(fourfold_program_new(text.data(), static_cast<int64_t>(text.size()))) {
    if (program_ == nullptr) throw std::invalid_argument(fourfold_program_error());
  }

  // `allocate(dtype's number, sizes, strides)` gives the address of a new output's memory.
  void run(const std::vector<Given>& given, const pybind11::function& allocate) const {
    std::vector<fourfold_tensor> inputs;
    for (const auto& [address, dtype, sizes, strides] : given) {
      inputs.push_back({reinterpret_cast<void*>(address), dtype, static_cast<int32_t>(sizes.size()), sizes.data(), strides.data()});
    }
    const auto call = [](void* context, int32_t, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides) {
      const pybind11::gil_scoped_acquire held;
      const auto& function = *static_cast<const pybind11::function*>(context);
      return reinterpret_cast<void*>(
          function(dtype, Sizes(sizes, sizes + dim), Sizes(strides, strides + dim)).cast<Address>());
    };
    int32_t failed = 0;
    {
      const pybind11::gil_scoped_release released;
      failed = fourfold_program_run(program_.get(), inputs.data(), static_cast<int32_t>(inputs.size()), call,
                                    const_cast<pybind11::function*>(&allocate));
    }
    if (failed != 0) throw std::invalid_argument(fourfold_program_error());
  }

  std::string source(const std::string& name) const {
    const char* text = fourfold_program_source(program_.get(), name.c_str());
    if (text == nullptr) throw std::invalid_argument(fourfold_program_error());
    return text;
  }

  void use(Address stages) { fourfold_program_use(program_.get(), reinterpret_cast<const void*>(stages)); }

  std::vector<int32_t> numbers() const {
    std::vector<int32_t> result;
    for (int32_t k = 0; k < fourfold_program_inputs(program_.get()); ++k) {
      result.push_back(fourfold_program_number(program_.get(), k));
    }
    return result;
  }

 private:
  std::unique_ptr<fourfold_program, Delete> program_;
};

}  // namespace

void add_program_by_address(pybind11::module_& m) {
  pybind11::class_<Program>(m, "Program", "A pointwise program, whose tensors are given by address.")
      .def(pybind11::init<const std::string&>(), "Raises ValueError where the text is no program.")
      .def("numbers", &Program::numbers, "Of each input that is a number, its dtype's number in torch; of a tensor -1.")
      .def("source", &Program::source, "The program as C++, whose stages' functions are an array of that name.")
      .def("use", &Program::use, "From now on computes by these functions, given by the array's address.")
      .def("run", &Program::run, "run([(address, dtype, sizes, strides), ...], allocate)");
}
