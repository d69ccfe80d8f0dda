"""Measured numbers as a person says them. Pure."""

THREE_DIGITS = 1000


def describe_amount(value: float, unit: str) -> str:
    """As in "99.1 %", "0.3/s", "420 ms", "24.3 requests", "1,890 tokens"."""
    if unit in {"ratio", "share"}:
        return f"{_digits(100 * value)} %"
    if unit == "s":
        return f"{_digits(1000 * value)} ms" if abs(value) < 1 else f"{_digits(value)} s"
    if unit.startswith("1/"):
        return f"{_digits(value)}/{unit.removeprefix('1/')}"
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    if abs(value) >= THREE_DIGITS or value == round(value):
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    if "e+" in text:  # 999.7 is rounded to 1e+03
        return f"{value:,.0f}"
    return f"{value:.6f}".rstrip("0").rstrip(".") if "e" in text else text
