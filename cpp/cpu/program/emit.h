// A program's stages as C++, which a compiler makes of what primitives otherwise compute, to the same bits.
#pragma once

#include <string>
#include <string_view>

#include "cpu/program/schedule.h"

namespace fourfold::cpu {

// text: the program as it was written, for the reader. name: of an array of the stages' functions, null for one that is
// left to the primitives; an identifier that nothing else has.
std::string emit(
    const program::Program& program, const Schedule& schedule, std::string_view text, std::string_view name);

}  // namespace fourfold::cpu
