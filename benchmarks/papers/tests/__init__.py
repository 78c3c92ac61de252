"""The papers' suite: ``python -m pytest benchmarks/papers``."""
