"""What requests find in the KV cache, hold of it and leave in it."""

from flettner.performance_model.block_pool import BlockPool, Prefix
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.request_state import RequestState


class RequestCache:
    def __init__(self, pool: BlockPool, limits: EngineLimits) -> None:
        self._pool = pool
        self._block = limits.block_size
        self._caching = limits.enable_prefix_caching

    def find(self, request: RequestState) -> tuple[int, int]:
        """Blocks in the cache: of the group's prefix, and its own after it was preempted."""
        if not self._caching:
            return 0, 0
        most = (request.tokens - 1) // self._block
        if request.prefix is None:
            shared = 0
        else:
            reachable = request.reach if request.own is not None else request.shared
            shared = min(reachable, request.prefix.available, most)
        if request.own is None or shared < min(request.reach, most):
            return shared, 0
        return shared, min(request.own.available, most - shared)

    def hold(self, request: RequestState, shared: int, own: int) -> None:
        request.held = shared
        if request.prefix is not None:
            self._pool.share(request.prefix, shared)
        if request.own is not None:
            self._pool.share(request.own, own)
            for run in request.own.idle:
                run.prefix = None
            request.own = None

    def register(self, request: RequestState) -> None:
        """The group finds the blocks that this request computed of their prefix."""
        if request.prefix is not None and request.held < request.reach:
            full = min(request.reach, request.computed // self._block)
            request.held = self._pool.extend(request.prefix, request.held, full)

    def free(self, request: RequestState, *, keep: bool) -> None:
        """Free its blocks, the last first. `keep`: it may find its own again."""
        pool, full, common = self._pool, request.computed // self._block, request.held
        if keep and self._caching:
            start = max(common, request.reach)
            own = max(0, full - start)
            pool.put(request.blocks - max(full, start) if own else request.blocks - common)
            request.own = Prefix(available=own)
            if own:
                pool.put(own, request.own)
                pool.put(start - common)
        else:
            pool.put(request.blocks - common)
        if request.prefix is not None:
            pool.release(request.prefix, common)
        request.blocks = request.held = 0
