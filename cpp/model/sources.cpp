// All sources of this directory and of graph/ in one translation unit, because torch's headers take longer to compile
// than the sources. It is compiled for each torch version (`_torch_<version>` includes it), and by C++ programs that link
// fourfold::model.
#include "../graph/sources.cpp"
#include "constants.cpp"
#include "guards.cpp"
#include "json.cpp"
#include "model.cpp"
#include "operators.cpp"
#include "permitted.cpp"
#include "reader.cpp"
#include "signature.cpp"
#include "stream.cpp"
#include "tensor_file.cpp"
