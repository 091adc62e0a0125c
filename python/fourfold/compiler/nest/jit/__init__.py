"""Compiles nests in this process: ``engine`` compiles LLVM IR, ``service`` answers the library's requests."""
