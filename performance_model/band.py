"""A predicted number and how certain it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """`value` for the load as recorded and the most likely law; 80 % of the draws lie from `low` to
    `high`."""

    value: float
    low: float
    high: float
