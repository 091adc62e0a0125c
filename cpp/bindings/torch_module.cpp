// The sources of _torch_<version> in one translation unit: torch's headers take longer to compile than the sources, and
// a wheel has six of these modules. program.cpp must come first, because it defines PY_SSIZE_T_CLEAN before Python.h.
#include "program.cpp"

#include "../model/sources.cpp"
#include "compiled.cpp"
#include "frozen.cpp"
#include "graph.cpp"
#include "model.cpp"
#include "steps.cpp"
#include "torch.cpp"
