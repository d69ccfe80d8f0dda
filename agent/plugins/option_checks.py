"""Options that are seconds."""

from agent.plugins.option_errors import shown

LONGEST_S = 365 * 24 * 3600.0  # some clocks and sockets count no further than a few centuries


def check_periods(sensor: object, *names: str) -> None:
    """Raises ValueError, which names the field, unless each is a number of seconds above 0."""
    for name in names:
        value = getattr(sensor, name)
        if isinstance(value, bool) or not 0 < value <= LONGEST_S:
            raise ValueError(
                f"{name} must be a number of seconds above 0 and at most a year, not {shown(value)}"
            )
