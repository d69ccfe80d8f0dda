"""Upgrades to good and bad releases: are bad ones rolled back for the right cause, and what does that cost?

A release (releases.py) is the simulator with a version and seeded regressions, which its environment says
(flettner.simulator.release). The daemon meets it as an upgrade that an admin proposes and approves.

- Virtual (virtual.py): regressions that take minutes to show, with machine, judge and the default plan, in
  virtual time. The engine is a stand-in.
- Real (real.py, sites.py): all of them, one after the other at one site: the daemon as a process, Envoy,
  servers as processes, Docker containers or pods, in real time with shorter steps.

Definitions:
- Right: the release ends as it should, and a bad one for a cause that names its regression.
- Exposed: requests that green served; bad: those of them that failed or were late.
- Lost: failed requests of clients, beyond those that the seeded regression itself has failed.
- Minutes: from the approval to the end of the rollout.
"""
