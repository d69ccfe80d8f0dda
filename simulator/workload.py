"""The requests of clients: lengths, arrivals and conversations, derived from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log
from random import Random

from flettner.simulator.text import CHARACTERS, draws

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of token counts between `least` and `most`."""

    kind: str  # fixed, uniform, lognormal
    middle: float  # the length, or the median of a lognormal
    sigma: float = 0.0  # of a lognormal
    least: int = 1
    most: int = 1 << 20

    def draw(self, random: Random) -> int:
        if self.kind == "uniform":
            return random.randint(self.least, self.most)
        value = self.middle if self.kind == "fixed" else random.lognormvariate(log(self.middle), self.sigma)
        return max(self.least, min(self.most, round(value)))


def lengths(text: str) -> Lengths:
    """Parse `64`, `uniform:32:128` or `lognormal:MEDIAN:SIGMA[:LEAST:MOST]`. Raises ValueError."""
    kind, *numbers = text.split(":") if ":" in text else ("fixed", text)
    try:
        if kind == "fixed" and len(numbers) == 1 and int(numbers[0]) > 0:
            return Lengths(kind=kind, middle=int(numbers[0]))
        if kind == "uniform" and len(numbers) == 2 and 0 < int(numbers[0]) <= int(numbers[1]):  # noqa: PLR2004
            return Lengths(kind=kind, middle=0, least=int(numbers[0]), most=int(numbers[1]))
        if kind == "lognormal" and len(numbers) in (2, 4) and float(numbers[0]) > 0 <= float(numbers[1]):
            bounds = [int(number) for number in numbers[2:]] or [1, 1 << 20]
            if 0 < bounds[0] <= bounds[1]:
                middle, sigma = float(numbers[0]), float(numbers[1])
                return Lengths(kind=kind, middle=middle, sigma=sigma, least=bounds[0], most=bounds[1])
    except ValueError:
        pass
    raise ValueError(f"{text!r}: lengths are N, uniform:LEAST:MOST or lognormal:MEDIAN:SIGMA[:LEAST:MOST]")


def gap_s(random: Random, rate: float, cv: float) -> float:
    """Draw the seconds to the next arrival, gamma-distributed: cv 1 is Poisson, 0 constant, 4 bursts."""
    if cv == 0:
        return 1 / rate
    shape = 1 / cv**2
    return random.gammavariate(shape, 1 / (rate * shape))


def prose(random: Random, tokens: int) -> str:
    """Return text of this number of tokens without repetition."""
    return "".join(random.choices(_LETTERS, k=tokens * CHARACTERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a population of clients."""

    prompt: Lengths = Lengths(kind="lognormal", middle=64, sigma=0.6, least=8, most=1024)  # of one turn
    output: Lengths = Lengths(kind="lognormal", middle=32, sigma=0.5, least=4, most=256)
    turns: Lengths = Lengths(kind="fixed", middle=1)  # of a conversation
    system_tokens: int = 0  # of a system prompt that all conversations share


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One session: each prompt contains the earlier turns and their answers."""

    session: str
    turns: int
    random: Random
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, shape: Shape) -> tuple[list[dict[str, str]], int]:
        """Return the messages of the next turn, and its number of answer tokens."""
        text = prose(self.random, shape.prompt.draw(self.random))
        self.messages.append({"role": "user", "content": text})
        return list(self.messages), shape.output.draw(self.random)

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def conversations(shape: Shape, seed: int) -> Iterator[Conversation]:
    """Yield an endless series; conversation N does not depend on the outcome of the others."""
    system = prose(draws(seed, "system"), shape.system_tokens)
    number = 0
    while True:
        random = draws(seed, "conversation", number)
        opening = [{"role": "system", "content": system}] if system else []
        yield Conversation(
            session=f"s{seed}-{number}", turns=shape.turns.draw(random), random=random, messages=opening
        )
        number += 1
