"""Benchmarks; they write JSON to `bench/results/`."""
