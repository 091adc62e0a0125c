// The sources of _torch_<version> as one: torch's headers take longer to compile than all that includes them, and a wheel has
// six of these modules. program.cpp first, which says how Python.h is to be read.
#include "program.cpp"

#include "../model/sources.cpp"
#include "compiled.cpp"
#include "frozen.cpp"
#include "graph.cpp"
#include "model.cpp"
#include "steps.cpp"
#include "torch.cpp"
