"""The complete loop on worlds: from a symptom to the suggestion, the rollout and the setting in force.

A world is a table of worlds.toml (world.py): a server's flags, its clients, the SLO, what is right. The
daemon is built from a config with engine, traffic and SLO only. The truth of a world multiplies coefficients
of the simulator and adds noise and pauses, so that no model of flettner is exact.

Definitions (score.py, static.py):
- Goodput: share of the requests that are answered, two minutes after the load at the latest, and meet every
  objective.
- True goodput of a setting: that of one such server under the full load, without a daemon; mean of two seeds.
- Best: the setting of a sweep (caps times budgets, then each other knob) with the largest true goodput.
- A suggestion is right if it moves a knob of `right` its way, as the simulator resolves defaults; harmful if
  the true goodput falls by more than a point. Where `right` is null, none but advice is right.
- A setting is right within 2 points of the best, or within 10 if a knob of `right` moved its way.
- Symptom: the end of the first minute of arrivals that misses an objective. Cure: from there until 95 % of
  the traffic have a right setting.
- Regret: goodput of the last three minutes against that of the best setting in the same minutes.
"""
