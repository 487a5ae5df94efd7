"""One script per question about speed; run them with `python -m benchmarks`."""
