"""What the engine knows of one request."""

from dataclasses import dataclass

from flettner.performance_model.block_pool import Prefix
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.trace import Trace


@dataclass(slots=True, eq=False)
class RequestState:
    """`computed`, `produced` and `blocks` of a request in the decode batch are those of when it joined."""

    arrival_s: float
    prompt: int  # tokens
    wanted: int  # tokens to produce
    shared: int = 0  # leading blocks that it may find in the cache
    reach: int = 0  # leading blocks that it has in common with its group
    prefix: Prefix | None = None  # of its group
    own: Prefix | None = None  # its own blocks after a preemption
    held: int = 0  # blocks of `prefix` in use
    computed: int = 0
    produced: int = 0
    blocks: int = 0
    admission: int = 0  # number of its admission
    joined: int = 0  # the batch's step count when it joined
    first_s: float | None = None
    last_s: float | None = None  # of its latest token, once it ended or was preempted
    preemptions: int = 0
    rejected: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + self.produced

    @property
    def is_decoding(self) -> bool:
        """Only the latest produced token is not computed yet."""
        return self.produced > 0 and self.computed == self.prompt + self.produced - 1


def initial_states(trace: Trace, limits: EngineLimits) -> tuple[RequestState, ...]:
    """The requests of a trace, before they arrive; those of a group have one prefix."""
    block = limits.block_size
    reach: dict[str, int] = {}
    for entry in trace:
        if entry.prefix_group:
            reach[entry.prefix_group] = max(reach.get(entry.prefix_group, 0), entry.cached_tokens // block)
    prefixes = {group: Prefix() for group in reach} if limits.enable_prefix_caching else {}
    longest = limits.max_model_len
    return tuple(
        RequestState(
            arrival_s=request.arrival_s,
            prompt=request.prompt_tokens,
            wanted=request.output_tokens
            if longest is None
            else min(request.output_tokens, longest - request.prompt_tokens),
            shared=request.cached_tokens // block if request.prefix_group else 0,
            reach=reach.get(request.prefix_group, 0) if request.prefix_group in prefixes else 0,
            prefix=prefixes.get(request.prefix_group),
        )
        for request in trace
    )
