"""Clients: Poisson requests at a drifting rate, half of them as turns of conversations."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import pi, sin
from random import Random

from bench.virtual_site import Arrival, new_request
from flettner.simulator.workload import Lengths

SYSTEM_TOKENS = 64  # shared prefix of all prompts
TURNS = 5
CONVERSATIONS = 40  # concurrent conversations
IN_CONVERSATION = 0.5
PROMPT = Lengths(kind="lognormal", middle=100, sigma=0.7, least=8, most=1200)
OUTPUT = Lengths(kind="lognormal", middle=16, sigma=0.5, least=4, most=80)


@dataclass(slots=True)
class _Session:
    name: int
    tokens: int = SYSTEM_TOKENS
    turns: int = 0


@dataclass(slots=True, kw_only=True)
class Clients:
    """`drift`: relative amplitude of the rate over `period_s`. All requests of a session have one place."""

    rate: float
    random: Random
    drift: float = 0.0
    period_s: float = 3600.0
    _sessions: deque[_Session] = field(default_factory=deque)
    _count: int = 0
    _next_s: float = 0.0

    def rate_at(self, at_s: float) -> float:
        return self.rate * (1 + self.drift * sin(2 * pi * at_s / self.period_s))

    def until(self, at_s: float) -> Iterator[Arrival]:
        """Return the requests up to that time: a Poisson process, thinned to the current rate."""
        most = self.rate * (1 + self.drift)
        while self._next_s < at_s:
            came_s = self._next_s
            self._next_s += self.random.expovariate(most)
            if self.random.random() * most <= self.rate_at(came_s):
                yield self._new_arrival(came_s)

    def _new_arrival(self, at_s: float) -> Arrival:
        self._count += 1
        talks = self.random.random() < IN_CONVERSATION
        session = self._session() if talks else _Session(self._count)
        prompt, output = session.tokens + PROMPT.draw(self.random), OUTPUT.draw(self.random)
        session.tokens, session.turns = prompt + output, session.turns + 1
        place = Random(session.name).uniform(0, 100)  # noqa: S311 - a hash, as in the proxy
        request = new_request(
            self._count, at_s, prompt=prompt, output=output, shared=SYSTEM_TOKENS, group=session.name
        )
        return Arrival(request, place)

    def _session(self) -> _Session:
        if len(self._sessions) < CONVERSATIONS or self.random.random() < 1 / TURNS:
            self._sessions.append(_Session(self._count))
            while len(self._sessions) > CONVERSATIONS:
                self._sessions.popleft()
            return self._sessions[-1]
        return self.random.choice(self._sessions)
