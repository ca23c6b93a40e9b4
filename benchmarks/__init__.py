"""Side-by-side benchmarks of inlay and its peers: `python -m benchmarks.run --help`."""
