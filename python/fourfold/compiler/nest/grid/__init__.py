"""Loop nests for devices that run grids of threads: kernels, as the statements of ``nest.loops``.

``layout`` reads a call's layout, ``build`` writes its kernels: threads split ``elements``, ``rows`` or ``columns``.
``printer`` prints them in a language of the C family."""
