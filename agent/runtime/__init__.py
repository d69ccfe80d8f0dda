"""The running daemon: the loop of each target, the effects, and the wiring of adapters to ports."""
