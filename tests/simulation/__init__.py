"""Complete daemons in a simulated world: a seed determines one history and reproduces it.

Real: the machine, guard, judge, fold, journal, performer and loop. Simulated: time, the host and its
servers, the proxy and its clients, metrics, operators, the disk and the faults.
`observer` checks the invariants.
"""
