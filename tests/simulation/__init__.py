"""Whole daemons in a simulated world: one seed is one history, and the same seed is the same history again.

Real: the machine, guard, judge, fold, journal, performer and loop. Simulated: time, the host and its
servers, the proxy and its clients, metrics, operators, the disk, and what befalls them.
`observer` asks what must be.
"""
