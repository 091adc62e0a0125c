"""The works of ``real``: a module for each model of examples/models, with ``cases``."""
