"""Loop nests for devices that run grids of threads: kernels, as the statements of ``nest.loops``.

``layout`` reads a call's layout, ``build`` writes its kernels: ``elements``, ``rows``, ``side`` and ``columns`` are what
threads may share."""
