"""One file an operator: its checks, fake kernel, gradient and vmap rule, and the function that people call."""
