"""What measures and compares for us: `python -m benchmarks.NAME`, from the repository's root. It is not installed."""
