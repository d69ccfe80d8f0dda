"""Fewer servers on worlds: how many are spared against a sweep, whether the SLO is kept, and the way back."""
