// fourfold's modules for torch's C++ frontend: fourfold::nn::LLTM, LSTM, GRU, their cells, and MLP, with the same
// parameters, initialisation and results as the Python package; and load_state_dict, which reads Python's checkpoints.
// Modules have gradients: the first one that is constructed calls enable_gradients().
#pragma once

#include <fourfold/nn/cells.h>
#include <fourfold/nn/mlp.h>
#include <fourfold/nn/recurrent.h>
#include <fourfold/nn/state_dict.h>
