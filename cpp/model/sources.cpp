// The sources of this directory as one, for each torch that runs graphs: torch's headers take longer to compile than all that
// includes them. `_torch_<version>` includes it, and a C++ program that links fourfold::model compiles it.
#include "graph.cpp"
#include "loop_products.cpp"
#include "loop_stages.cpp"
#include "loop_step.cpp"
#include "memory.cpp"
#include "number_step.cpp"
#include "operator_step.cpp"
#include "outputs.cpp"
#include "program.cpp"
#include "wide_product.cpp"
