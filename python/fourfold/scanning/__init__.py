"""``fourfold.scan``: recurrences written in Python."""

from fourfold.scanning.scan import scan

__all__ = ["scan"]

scan.__module__ = __name__
