"""``fourfold.save`` and ``fourfold.load``: exported programs in one file.

load.py and what it imports is all that a process needs which only runs models; save.py brings the compiler."""
