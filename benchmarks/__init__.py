"""fourfold against other ways to run the same mathematics: what README and docs/benchmarks.md show the tables of."""
