"""``fourfold.save`` and ``fourfold.load``: exported programs in one file.

A process that only runs models needs load.py and what it imports; save.py imports the compiler."""
