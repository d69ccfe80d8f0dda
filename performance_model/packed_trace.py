"""A trace in a few bytes for each request, to be kept and sent."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from flettner.performance_model.trace import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTrace(Sequence[TraceRequest]):
    """Its requests are made when they are read. Those with `cached` tokens share one prefix group."""

    arrivals_s: "array[float]" = field(default_factory=lambda: array("d"))
    prompts: "array[int]" = field(default_factory=lambda: array("I"))
    outputs: "array[int]" = field(default_factory=lambda: array("I"))
    cached: "array[int]" = field(default_factory=lambda: array("I"))

    @overload
    def __getitem__(self, at: int) -> TraceRequest: ...
    @overload
    def __getitem__(self, at: slice) -> "PackedTrace": ...
    def __getitem__(self, at: int | slice) -> "TraceRequest | PackedTrace":
        if isinstance(at, slice):
            return PackedTrace(
                arrivals_s=self.arrivals_s[at],
                prompts=self.prompts[at],
                outputs=self.outputs[at],
                cached=self.cached[at],
            )
        return _request(self.arrivals_s[at], self.prompts[at], self.outputs[at], self.cached[at])

    def __len__(self) -> int:
        return len(self.arrivals_s)

    def __iter__(self) -> Iterator[TraceRequest]:
        return map(_request, self.arrivals_s, self.prompts, self.outputs, self.cached)


def pack(trace: Iterable[TraceRequest]) -> PackedTrace:
    """Prefix groups become one."""
    packed = PackedTrace()
    for request in trace:
        packed.arrivals_s.append(request.arrival_s)
        packed.prompts.append(request.prompt_tokens)
        packed.outputs.append(request.output_tokens)
        packed.cached.append(request.cached_tokens)
    return packed


def _request(arrival_s: float, prompt: int, output: int, cached: int) -> TraceRequest:
    return TraceRequest(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=cached,
        prefix_group="shared" if cached else "",
    )
