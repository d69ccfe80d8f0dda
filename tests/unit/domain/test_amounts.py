"""Measured numbers are told without exponents and needless digits."""

import pytest

from flettner.agent.domain.amounts import describe_amount


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (0.991065, "ratio", "99.1 %"),
        (0.00255214, "ratio", "0.255 %"),
        (1.0, "share", "100 %"),
        (24.3292, "requests", "24.3 requests"),
        (1890.4, "tokens", "1,890 tokens"),
        (4.9e8, "", "490,000,000"),
        (999.7, "tokens/s", "1,000 tokens/s"),
        (0.0, "1/s", "0/s"),
        (0.34567, "1/s", "0.346/s"),
        (0.42, "s", "420 ms"),
        (0.0000012, "s", "0.0012 ms"),
        (65.27, "s", "65.3 s"),
        (0.0000004, "GiB", "0 GiB"),
        (-0.5, "%", "-0.5 %"),
    ],
)
def test_a_number_is_told_as_a_person_says_it(value: float, unit: str, told: str) -> None:
    assert describe_amount(value, unit) == told
