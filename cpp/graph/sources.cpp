// All sources of this directory in one translation unit, because torch's headers take longer to compile than the
// sources. It is compiled for each torch version: `_torch_<version>` and C++ programs include model/sources.cpp.
#include "convolution.cpp"
#include "graph.cpp"
#include "loop_nest.cpp"
#include "loop_products.cpp"
#include "loop_results.cpp"
#include "loop_stages.cpp"
#include "loop_step.cpp"
#include "memory.cpp"
#include "number_step.cpp"
#include "operator_step.cpp"
#include "outputs.cpp"
#include "packed_layer.cpp"
#include "packed_weights.cpp"
#include "program.cpp"
#include "steady.cpp"
#include "steady_plan.cpp"
#include "substitutes.cpp"
#include "transposed_copy.cpp"
#include "wide_product.cpp"
// Loops over memory, behind the headers that they need. The module is compiled with -O1, at which GCC doesn't vectorise.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif
#include "block_convolution.cpp"
#include "depthwise.cpp"
#include "few_positions.cpp"
#include "loop_lookups.cpp"
#include "padding.cpp"
#include "small_products.cpp"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
