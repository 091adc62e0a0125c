// All sources of this directory in one translation unit, because torch's headers take longer to compile than the
// sources. It is compiled for each torch version: `_torch_<version>` and C++ programs include model/sources.cpp.
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
#include "program.cpp"
#include "wide_product.cpp"
