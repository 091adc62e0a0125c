// A recurrent layer with its weights and inputs, and the results of its forward and backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/kernels/cell.h"

namespace fourfold::races {

struct Cell {
  const char* name;
  int gates;
  int kept;
  bool has_c;
  const cpu::CellKernels& (*kernels)(Kind kind);
};

extern const Cell cells[3];

struct Shape {
  const char* name;
  Kind kind;  // float32, float64 or bfloat16
  int64_t time;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  bool uneven;  // reversed, packed with sequences of several lengths, and with some restarts
};

// Every tensor that the calls write, in a fixed order.
template <typename S>
using Results = std::vector<std::vector<S>>;

template <typename S>
class Layer {
 public:
  Layer(const Cell& cell, const Shape& shape);

  // A forward and then a backward. Several threads may call it at once.
  Results<S> run() const;

 private:
  RecurrentLayer description() const;

  const Cell& cell_;
  const Shape& shape_;
  std::vector<int64_t> offsets_;
  std::unique_ptr<bool[]> reset_;
  std::vector<S> weight_ih_, weight_hh_, bias_ih_, bias_hh_, input_, h_0_, c_0_, grad_output_, grad_h_n_, grad_c_n_;
};

}  // namespace fourfold::races
