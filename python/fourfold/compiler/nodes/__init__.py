"""Nodes that fourfold puts into a graph: a program, a loop over steps, a compiled graph; ``recorder`` writes torch code
as nodes."""
