"""Loop nests: programs compiled at run time for the layouts of their calls.

``reading`` reads a program's text, ``plan`` finds its stages, ``build`` writes the nest of a layout: loops over
explicit vectors as plain data (``loops``); ``grid`` writes kernels of the same statements. ``llvm`` prints a nest as
LLVM IR, ``c`` as readable C++, and a module for each family of devices prints kernels; ``engine`` compiles the IR, and
``service`` answers the library's requests."""
