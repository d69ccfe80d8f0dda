"""Tests with one real part."""
