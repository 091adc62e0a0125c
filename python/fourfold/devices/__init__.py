"""Run-time compilation for GPUs: the definitions that kernels call, and the vendors' compilers."""
