"""What goes wrong with a simulated server, tied to the value of a knob so that only one setting is hit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KINDS = {
    "exit": "exits 1 while it starts",
    "never_ready": "never opens its port",
    "die_after": "exits 1 so many seconds after its first request",
    "hang_after": "produces no token from so many seconds after its first request on; /health stays 200",
    "errors": "answers this share of the requests with 500",
    "abort": "answers this share with 200 and finish_reason abort",
    "truncate": "cuts this share of the streams in the middle",
    "slow": "multiplies the time of every step",
}
_PLAIN = ("exit", "never_ready")
_SHARES = ("errors", "abort", "truncate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of one server; the neutral value of each does nothing."""

    exit: bool = False
    never_ready: bool = False
    die_after: float | None = None  # seconds
    hang_after: float | None = None  # seconds
    errors: float = 0.0
    abort: float = 0.0
    truncate: float = 0.0
    slow: float = 1.0


def faults_for(texts: Sequence[str], setting: Mapping[str, object]) -> Faults:
    """The faults whose condition `setting` meets, from texts such as `max_num_seqs=7:errors=0.2`.

    `*:KIND` always holds. ValueError, with the forms allowed, for a text that is none, or names no knob.
    """
    found: dict[str, bool | float] = {}
    for text in texts:
        condition, colon, fault = text.rpartition(":")
        kind, _, argument = fault.partition("=")
        if not colon or kind not in KINDS:
            raise ValueError(
                f"--sim-fault {text}: expected KNOB=VALUE:KIND[=NUMBER], kinds: {', '.join(KINDS)}"
            )
        value = _argument(text, kind, argument)
        if _holds(text, condition, setting):
            found[kind] = value
    return Faults(**found)  # type: ignore[arg-type]  # by KINDS, each of its type


def _argument(text: str, kind: str, argument: str) -> bool | float:
    if kind in _PLAIN:
        if argument:
            raise ValueError(f"--sim-fault {text}: {kind} takes no number")
        return True
    try:
        number = float(argument)
    except ValueError:
        raise ValueError(f"--sim-fault {text}: {kind} needs a number, as in {kind}=0.5") from None
    if number < 0 or (kind in _SHARES and number > 1) or (kind == "slow" and number == 0):
        raise ValueError(f"--sim-fault {text}: {argument} is out of range")
    return number


def _holds(text: str, condition: str, setting: Mapping[str, object]) -> bool:
    if condition == "*":
        return True
    knob, equals, wanted = condition.partition("=")
    knob = knob.replace("-", "_")
    if not equals or knob not in setting:
        raise ValueError(f"--sim-fault {text}: {knob!r} is no flag of this server")
    actual = setting[knob]
    if isinstance(actual, int | float) and not isinstance(actual, bool):
        try:
            return float(wanted) == float(actual)
        except ValueError:
            return False
    return wanted.lower() == str(actual).lower()
