"""The tables of the MRP paper on any checkpoint: `python -m benchmarks.paper`."""
