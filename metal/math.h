// The functions that cpp/formulas/ need in Metal's language.
#pragma once

#include "numbers.h"

namespace fourfold {

using numbers::abs;
using numbers::exp;
using numbers::expm1;
using numbers::fma;
using numbers::select;
using numbers::sigmoid;
using numbers::tanh;

}  // namespace fourfold
