// The sources of _torch_<version> as one: torch's headers take longer to compile than all that includes them, and a wheel has
// six of these modules. program.cpp first, which says how Python.h is to be read.
#include "program.cpp"

#include "compiled.cpp"
#include "frozen.cpp"
#include "graph.cpp"
#include "loop_products.cpp"
#include "loop_stages.cpp"
#include "loop_step.cpp"
#include "memory.cpp"
#include "number_step.cpp"
#include "operator_step.cpp"
#include "outputs.cpp"
#include "torch.cpp"
#include "wide_product.cpp"
