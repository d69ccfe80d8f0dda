"""The running daemon: a loop for each target, the effect runner, and the wiring of adapters to ports."""
