"""The performance model in the daemon: recorded load, law of step time, and what follows from both."""
