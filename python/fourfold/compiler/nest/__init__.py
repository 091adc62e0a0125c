"""Loop nests: programs compiled at run time for the layouts of their calls.

``ir`` has what every nest is built from, ``cpu`` and ``grid`` build the nests of CPUs and the kernels of GPUs,
``print`` prints them, and ``jit`` compiles them when the library asks."""
