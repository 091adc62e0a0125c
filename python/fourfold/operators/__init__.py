"""One file per operator: its checks, fake kernel, gradient and vmap rule, and its public function."""
