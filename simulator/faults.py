"""Faults of a simulated server, tied to the value of a knob so that they affect one setting only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from flettner.simulator.step_time import StepWork

FIVE = 5.0
MINUTE_S = 60.0

KINDS = {
    "exit": "exits 1 while it starts",
    "never_ready": "never opens its port",
    "die_after": "exits 1 this number of seconds after its first request",
    "hang_after": "produces no token, this number of seconds after its first request; /health stays 200",
    "sleep_refused": "answers /sleep with 500",
    "wake_fails": "answers /wake_up with 500, as without GPU memory, and sleeps on",
    "die_asleep": "exits 1 this number of seconds after it fell asleep",
    "errors": "answers this share of the requests with 500",
    "abort": "answers this share with 200 and finish_reason abort",
    "truncate": "cuts this share of the streams in the middle",
    "wrong": "answers this share with other words",
    "slow": "multiplies the time of every step",
    "slow_prefill": "multiplies the time of steps that compute prompts",
    "slow_decode": "multiplies the time of steps that do not",
    "slow_above": "five times as slow in steps of more than this number of sequences",
    "slow_after": "five times as slow, this number of seconds after its first request",
    "leak": "never frees the last blocks of a request in the KV cache, this number of them",
    "adapter_refused": "answers 500 to every load of an adapter",
    "adapter_gone": "lists the adapters that it has loaded, and answers 404 to their requests",
    "stall": "ends no step in the last seconds, of this number, of each minute since its first request",
}
_PLAIN = ("exit", "never_ready", "sleep_refused", "wake_fails", "adapter_refused", "adapter_gone")
_SHARES = ("errors", "abort", "truncate", "wrong")
_FACTORS = ("slow", "slow_prefill", "slow_decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of one server; neutral values have no effect."""

    exit: bool = False
    never_ready: bool = False
    die_after: float | None = None  # seconds
    hang_after: float | None = None  # seconds
    sleep_refused: bool = False
    wake_fails: bool = False
    die_asleep: float | None = None  # seconds
    errors: float = 0.0
    abort: float = 0.0
    truncate: float = 0.0
    wrong: float = 0.0
    slow: float = 1.0
    slow_prefill: float = 1.0
    slow_decode: float = 1.0
    slow_above: float = inf  # sequences
    slow_after: float = inf  # seconds
    leak: float = 0.0  # blocks
    adapter_refused: bool = False
    adapter_gone: bool = False
    stall: float = 0.0  # seconds

    def pace(self, work: StepWork, since_s: float) -> float:
        """Return the factor on the time of a step; `since_s`: seconds from the first request to its begin."""
        factor = self.slow * (self.slow_prefill if work.prefills else self.slow_decode)
        factor *= FIVE if work.sequences > self.slow_above else 1.0
        return factor * (FIVE if since_s >= self.slow_after else 1.0)

    def ends_s(self, since_s: float) -> float:
        """Return the end of a step in seconds after the first request; inf: the step never ends."""
        if self.hang_after is not None and since_s >= self.hang_after:
            return inf
        minutes, seconds = divmod(since_s, MINUTE_S)
        return (minutes + 1) * MINUTE_S if seconds >= MINUTE_S - self.stall else since_s


def faults_for(texts: Sequence[str], setting: Mapping[str, object]) -> Faults:
    """Return the faults whose condition `setting` meets, from texts such as `max_num_seqs=7:errors=0.2`.

    `*:KIND` always applies. Raises ValueError, with the allowed forms, for an invalid text or one without a
    knob.
    """
    values: dict[str, bool | float] = {}
    for text in texts:
        condition, colon, fault = text.rpartition(":")
        kind, _, argument = fault.partition("=")
        if not colon or kind not in KINDS:
            raise ValueError(
                f"--sim-fault {text}: expected KNOB=VALUE:KIND[=NUMBER], kinds: {', '.join(KINDS)}"
            )
        value = _argument(text, kind, argument)
        if _holds(text, condition, setting):
            values[kind] = value
    return Faults(**values)  # type: ignore[arg-type]  # by KINDS, each of its type


def _argument(text: str, kind: str, argument: str) -> bool | float:
    if kind in _PLAIN:
        if argument:
            raise ValueError(f"--sim-fault {text}: {kind} takes no number")
        return True
    try:
        number = float(argument)
    except ValueError:
        raise ValueError(f"--sim-fault {text}: {kind} needs a number, as in {kind}=0.5") from None
    most = 1.0 if kind in _SHARES else MINUTE_S - 1 if kind == "stall" else inf
    if not 0 <= number <= most or (kind in _FACTORS and number == 0):
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
