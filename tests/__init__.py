"""All tests, by what they need."""
