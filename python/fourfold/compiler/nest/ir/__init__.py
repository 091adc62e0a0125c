"""What the CPU's nests and GPU kernels are built from: a program's text, its stages, a call's layout, and loops as
plain data."""
