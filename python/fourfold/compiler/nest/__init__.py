"""Loop nests: programs compiled at run time for the layouts of their calls."""
