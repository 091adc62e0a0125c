"""The compiler's passes: graph in, graph out."""
