"""What the tokens of a step cost in relation to one another: estimates that hold for common hardware.

The duration of a step of n prompt tokens is about proportional to n + RIDGE.
"""

RIDGE = 100.0  # tokens that a step computes in the time it takes to read the weights; 20 to 200 by hardware
DECODE_COST = 2.5  # of an answer token over a prompt token: it also reads the cache, and costs host time
