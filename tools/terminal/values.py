"""Values of the API's documents as text. Text from servers and operators cannot control the terminal."""

from math import floor, log10

SECONDS = 10  # shorter latencies are shown in milliseconds
COST_TITLES = (
    ("cost_per_million_tokens", "cost of a million tokens"),
    ("cost_per_thousand_good_requests", "cost of 1,000 requests within the objectives"),
    ("tokens_per_joule", "tokens per joule"),
)
"""Numbers of a prediction, by name."""


def escape_text(text: object) -> str:
    """Return one line of printable characters; every other character is escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(text)
    )


def format_value(given: object) -> str:
    """Return a knob's value in command-line notation; null is vLLM's default."""
    if given is None:
        return "default"
    return str(given).lower() if isinstance(given, bool) else escape_text(given)


def format_time(stamp: str | None) -> str:
    """Return a text such as 2026-11-20 12:00:00 UTC, from an ISO 8601 timestamp of the API."""
    return "never" if stamp is None else escape_text(stamp)[:19].replace("T", " ") + " UTC"


def format_latency(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < SECONDS else f"{seconds:.1f} s"


def format_amount(amount: float) -> str:
    """Return three digits, without an exponent: of money, or of tokens for a joule."""
    if amount >= 100:  # noqa: PLR2004 - three digits
        return f"{amount:,.0f}"
    digits = 2 - floor(log10(amount)) if amount > 0 else 0
    return f"{amount:.{min(digits, 12)}f}"


def format_prediction(name: str, value: float) -> str:
    """Format a number of the performance model; the name gives the unit: per second, seconds, or a share."""
    if name.startswith("cost_") or name == "tokens_per_joule":
        return format_amount(value)
    if name.endswith("_per_s"):
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - three digits
    if name.endswith("_s"):
        return format_latency(value)
    return f"{value:.2f}" if name == "preemptions_per_request" else f"{value:.1%}"
