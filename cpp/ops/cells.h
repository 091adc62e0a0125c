// The cells of recurrent operators: their numbers of gates and saved values, from the formulas.
#pragma once

#include "ops/recurrent.h"

namespace fourfold {

// The operators' bodies read the formulas' constants only; backends include the formulas with their own definitions.
#define FOURFOLD_FN inline
#define FOURFOLD_CONSTANT static constexpr
namespace formulas {
#include "formulas/gates.h"
#include "formulas/gru.h"
#include "formulas/lltm.h"
#include "formulas/lstm.h"
}  // namespace formulas
#undef FOURFOLD_FN
#undef FOURFOLD_CONSTANT

template <typename Cell>
constexpr RecurrentCell describe_cell(const char* op, const char* backward_op) {
  return {op, backward_op, Cell::gates, Cell::kept, Cell::has_c};
}

}  // namespace fourfold
