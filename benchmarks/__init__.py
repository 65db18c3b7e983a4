"""Measures and compares the engine: `python -m benchmarks.NAME`, from the repository's root. It is not installed."""
