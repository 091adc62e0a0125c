"""Prints nests: as LLVM IR, as readable C++, and kernels for each family of devices."""
