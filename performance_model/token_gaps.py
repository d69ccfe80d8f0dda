"""The times between the tokens of all requests, counted in narrow bins."""

from math import exp, floor, log

_BINS = 50  # for each factor of e: 2 % wide
_PARTS = 8  # at most, of a stretch whose steps become slower


class TokenGaps:
    def __init__(self) -> None:
        self._counts: dict[int, float] = {}

    @property
    def count(self) -> float:
        return sum(self._counts.values())

    def add(self, seconds: float, count: float) -> None:
        place = floor(_BINS * log(seconds))
        self._counts[place] = self._counts.get(place, 0.0) + count

    def add_stretch(self, first: float, growth: float, steps: int, sequences: int) -> None:
        """Steps of a constant batch, each `growth` seconds longer than the one before."""
        parts = min(_PARTS, steps, 1 + int(_BINS * growth * steps / first))
        for part in range(parts):
            middle = (part + 0.5) / parts * (steps - 1)
            self.add(first + growth * middle, sequences * steps / parts)

    def quantile(self, share: float) -> float | None:
        """Seconds; None without a gap."""
        wanted = share * self.count
        for place in sorted(self._counts):
            wanted -= self._counts[place]
            if wanted <= 0:
                return exp((place + 0.5) / _BINS)
        return None
