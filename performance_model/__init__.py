"""Predicts the performance of a setting for recorded traffic: trace, law of step time, scheduler, search.

Pure: no clock and no I/O; randomness comes from a given seed.
"""
