"""Where a run of the case table in simulation, which takes minutes, is carried out once for all files here."""

from case_table import outcome_of

__all__ = ["outcome_of"]
