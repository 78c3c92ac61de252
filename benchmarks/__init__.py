"""Benchmarks: scripts, and the papers whose results are reproduced."""
