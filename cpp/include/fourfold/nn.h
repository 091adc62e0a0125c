// fourfold's modules for torch's C++ frontend: fourfold::nn::LLTM, LSTM, GRU, their cells, and MLP, with the parameters,
// the initial values and the results of the Python package's; and load_state_dict, which reads what Python saved.
// They differentiate: the first module that is made calls enable_gradients().
#pragma once

#include <fourfold/nn/cells.h>
#include <fourfold/nn/mlp.h>
#include <fourfold/nn/recurrent.h>
#include <fourfold/nn/state_dict.h>
