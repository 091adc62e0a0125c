"""Passes of the compiler: each changes a module's graph in place and returns the module."""
