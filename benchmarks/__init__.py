"""Benchmarks of inlay and its peers, side by side: `python -m benchmarks.run --help`."""
