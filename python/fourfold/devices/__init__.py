"""What compiles programs for a GPU at run time: the text that their kernels call, and the vendors' compilers."""
