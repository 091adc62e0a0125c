"""The IR of programs: ``values`` are hash-consed and folded as they are written."""
