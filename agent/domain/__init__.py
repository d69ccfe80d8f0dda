"""The values, events, effects, ports and errors of the core. Nothing here performs I/O."""
