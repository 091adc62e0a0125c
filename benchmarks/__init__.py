"""fourfold against other implementations of the same mathematics: the measurements behind the README's and
docs/benchmarks.md's tables."""
