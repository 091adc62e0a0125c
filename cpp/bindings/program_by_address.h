// A pointwise program for a torch whose own API this build was not compiled for: tensors are given by address.
#pragma once

#include <pybind11/pybind11.h>

void add_program_by_address(pybind11::module_& m);
