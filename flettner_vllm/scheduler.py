"""vLLM's scheduler with limits that can be changed while it runs.

    vllm serve MODEL --scheduler-cls flettner_vllm.scheduler.Scheduler

vLLM reads the number of running requests, the token budget of a step, the threshold of long prompts and the
watermark at the begin of each step. Just before it they are set here; all else is vLLM's own scheduler. A
request that runs is never touched: a lower number of running requests is reached as requests end.

The environment variable FLETTNER_CONTROL has the address of the control endpoint, `/path/of/a.sock` or
`127.0.0.1:PORT`; engine N of a data-parallel server has `.N` appended, or the port plus N. Where it cannot
work the server starts with vLLM's own scheduler, and a line of its log says why.

    GET  /knobs -> {"vllm", "number", "applied", "lease_left_s", "start", "limits", "kept", "in_force"}
    PUT  /knobs <- {"number": [EPOCH, N], "values": {KNOB: VALUE}, "lease_s": SECONDS or null}

`values` are all knobs that differ from the start. Numbers only grow; the same number with the same values
renews the lease. When the lease ends, the last values that were set without one (null) are in force again,
at first those of the start. `applied` is the number that the last step used; an idle engine takes no step.

Needs only Python and vLLM: mount it into a container as DIR/flettner_vllm/scheduler.py, with PYTHONPATH=DIR.
"""

import hmac
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import ECONNREFUSED
from http.server import BaseHTTPRequestHandler
from importlib import import_module
from math import inf
from pathlib import Path
from socketserver import BaseServer, TCPServer, UnixStreamServer
from time import monotonic
from typing import Any

CONTROL, TOKEN_FILE = "FLETTNER_CONTROL", "FLETTNER_CONTROL_TOKEN_FILE"
OLDEST, NEWEST = (0, 11), (0, 33)  # releases whose scheduler reads these limits at each step
LONGEST_LEASE_S = 3600.0
MOST_BYTES = 4096  # of a request's body
CLIENT_TIMEOUT_S = 2.0  # a client that sends nothing holds the endpoint no longer
log = logging.getLogger("vllm.flettner")  # below vLLM's own logger, so that it goes where vLLM's lines go

Number = tuple[int, int]
Value = int | float


class Refused(Exception):  # noqa: N818 - an answer to a request, not an error of the program
    """A change that is not made. `status` is that of HTTP."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Limit:
    """The range of a knob, fixed at the start of the server."""

    low: Value
    high: Value

    def check(self, name: str, value: object) -> Value:
        """Return the value. Raises Refused."""
        wanted = (int, float) if isinstance(self.high, float) else (int,)
        if isinstance(value, bool) or not isinstance(value, wanted) or not self.low <= value <= self.high:
            kind = "a number" if isinstance(self.high, float) else "a whole number"
            raise Refused(400, f"{name} {value!r}: must be {kind} from {self.low} to {self.high}")
        return value


class Knobs:
    """The values that are wanted. The control endpoint sets them, the steps of the engine read them."""

    def __init__(
        self, start: Mapping[str, Value], limits: Mapping[str, Limit], now: Callable[[], float] = monotonic
    ) -> None:
        self.start, self.limits = dict(start), dict(limits)
        self.applied: Number | None = None
        self.number: Number | None = None
        self._changes = self._kept = dict[str, Value]()  # `_kept`: those set without a lease
        self._ends, self._is_new = inf, False
        self._now, self._lock = now, threading.Lock()

    def set(self, document: object) -> None:
        """Put a PUT's document in force. Raises Refused, and then nothing has changed."""
        number, changes, lease_s = self._parse(document)
        with self._lock:
            self._expire()
            if self.number is not None and number < self.number:
                raise Refused(409, f"number {list(number)} is below {list(self.number)}, which is in force")
            if number == self.number and changes != self._changes:
                raise Refused(409, f"number {list(number)} had other values: {self._changes}")
            self._is_new |= number != self.number
            self.number, self._changes = number, changes
            self._kept = changes if lease_s is None else self._kept
            self._ends = inf if lease_s is None else self._now() + lease_s

    def take(self) -> Mapping[str, Value] | None:
        """All values, if they have changed since the last call; called at the begin of each step."""
        if not self._is_new and self._now() < self._ends:
            return None
        with self._lock:
            self._expire()
            self._is_new, self.applied = False, self.number
            return {**self.start, **self._changes}

    def show(self) -> dict[str, object]:
        with self._lock:
            self._expire()
            return {
                "number": self.number,
                "applied": self.applied,
                "lease_left_s": None if self._ends == inf else round(self._ends - self._now(), 3),
                "start": self.start,
                "limits": {name: [limit.low, limit.high] for name, limit in self.limits.items()},
                "kept": {**self.start, **self._kept},
                "in_force": {**self.start, **self._changes},
            }

    def _expire(self) -> None:
        """The number stays: a write that was sent before the end of the lease must not come into force."""
        if self._now() >= self._ends:
            log.warning(
                "flettner: lease of %s ended; back to %s", self._changes, {**self.start, **self._kept}
            )
            self._changes, self._ends, self._is_new = self._kept, inf, True

    def _parse(self, document: object) -> tuple[Number, dict[str, Value], float | None]:
        if not isinstance(document, dict) or document.keys() != {"number", "values", "lease_s"}:
            raise Refused(400, 'the body must be an object with "number", "values" and "lease_s"')
        number, values, lease_s = document["number"], document["values"], document["lease_s"]
        if not (isinstance(number, list) and len(number) == 2 and all(type(n) is int for n in number)):  # noqa: PLR2004
            raise Refused(400, f"number {number!r}: must be [EPOCH, N], two whole numbers")
        if lease_s is not None and not (type(lease_s) in (int, float) and 0 < lease_s <= LONGEST_LEASE_S):
            raise Refused(400, f"lease_s {lease_s!r}: must be above 0, at most {LONGEST_LEASE_S:g}, or null")
        if not isinstance(values, dict):
            raise Refused(400, f"values {values!r}: must be an object")
        unknown = sorted(values.keys() - self.limits.keys())
        if unknown:
            raise Refused(400, f"{unknown[0]}: unknown here; known: {', '.join(self.limits)}")
        checked = {name: self.limits[name].check(name, value) for name, value in values.items()}
        return (number[0], number[1]), checked, lease_s


class HotStep:
    """Takes the place of a scheduler's `schedule`: before each step, the wanted values become its own."""

    def __init__(self, scheduler: Any, knobs: Knobs) -> None:  # noqa: ANN401 - of any supported release
        self._scheduler, self._knobs = scheduler, knobs
        self._schedule = scheduler.schedule
        self._most_running = int(knobs.start["max_num_seqs"])

    def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        scheduler = self._scheduler
        if (values := self._knobs.take()) is not None:
            self._most_running = int(values["max_num_seqs"])
            _write(scheduler, values)
        if not hasattr(scheduler, "max_num_active_reqs"):
            # Up to 0.30 the cap is also the capacity: a step asserts at its end that it is not exceeded.
            scheduler.max_num_running_reqs = max(self._most_running, len(scheduler.running))
        return self._schedule(*args, **options)


def _write(scheduler: Any, values: Mapping[str, Value]) -> None:  # noqa: ANN401
    if hasattr(scheduler, "max_num_active_reqs"):
        scheduler.max_num_active_reqs = int(values["max_num_seqs"])
    scheduler.max_num_scheduled_tokens = values["max_num_scheduled_tokens"]
    scheduler.scheduler_config.long_prefill_token_threshold = values["long_prefill_token_threshold"]
    if "watermark" in values:
        cache = scheduler.kv_cache_manager
        cache.watermark_blocks = int(values["watermark"] * scheduler.kv_cache_config.num_blocks)


def find_knobs(scheduler: Any) -> Knobs:  # noqa: ANN401 - the scheduler of any supported release
    """The values of the start and their ranges. Raises AttributeError if the scheduler has other limits."""
    config = scheduler.scheduler_config
    slots, budget = scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens
    threshold = config.long_prefill_token_threshold
    # A request that generates takes a token of each step, and one for each that is speculated.
    least = min(budget, slots * (1 + getattr(scheduler, "num_spec_tokens", 0)))
    start: dict[str, Value] = {
        "max_num_seqs": getattr(scheduler, "max_num_active_reqs", slots),
        "max_num_scheduled_tokens": budget,
        "long_prefill_token_threshold": threshold,
    }
    limits = {
        "max_num_seqs": Limit(1, slots),
        "max_num_scheduled_tokens": Limit(least, budget),
        "long_prefill_token_threshold": Limit(0, budget),
    }
    if not getattr(config, "enable_chunked_prefill", getattr(config, "chunked_prefill_enabled", True)):
        # A prompt must fit into one step.
        limits["max_num_scheduled_tokens"] = Limit(budget, budget)
        limits["long_prefill_token_threshold"] = Limit(threshold, threshold)
    if hasattr(scheduler.kv_cache_manager, "watermark_blocks"):
        start["watermark"] = float(config.watermark)
        limits["watermark"] = Limit(0.0, 0.5)
    return Knobs(start, limits)


class Scheduler:
    """What `--scheduler-cls` names: an instance is vLLM's own scheduler."""

    def __new__(cls, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as vLLM's release has it
        config = options["vllm_config"] if "vllm_config" in options else args[0]
        scheduler = _find_own_class(config.scheduler_config)(*args, **options)
        try:
            version = _check_support(config)
            knobs = find_knobs(scheduler)
            address = find_address(os.environ.get(CONTROL, ""), config.parallel_config)
            start_control(address, knobs, read_token(), version)
            scheduler.schedule = HotStep(scheduler, knobs)
            log.info("flettner: %s can be changed at %s", ", ".join(knobs.limits), address)
        except Exception as error:  # noqa: BLE001 - whatever it is, the server must start
            log.warning("flettner: no limit can be changed at %s: %s", os.environ.get(CONTROL), error)
        return scheduler


def _find_own_class(config: Any) -> type[Any]:  # noqa: ANN401
    """The class that vLLM takes without `--scheduler-cls`."""
    if getattr(config, "async_scheduling", False):
        return import_module("vllm.v1.core.sched.async_scheduler").AsyncScheduler  # type: ignore[no-any-return]
    return import_module("vllm.v1.core.sched.scheduler").Scheduler  # type: ignore[no-any-return]


def _check_support(config: Any) -> str:  # noqa: ANN401
    """The release of vLLM. Raises ValueError if it or this kind of model is not supported."""
    version = str(import_module("vllm").__version__)
    if not is_known(version):
        releases = " to ".join(".".join(map(str, release)) for release in (OLDEST, NEWEST))
        raise ValueError(f"vLLM {version} is not known to this release, which knows {releases}")
    if getattr(config, "diffusion_config", None) is not None:
        raise ValueError("diffusion models have a scheduler of their own")
    return version


def is_known(version: str) -> bool:
    """Whether a release such as "0.32.0" or "0.32.1.dev3+g1a2b3c" is supported."""
    match = re.match(r"(\d+)\.(\d+)\b", version)
    return match is not None and OLDEST <= (int(match[1]), int(match[2])) <= NEWEST


def find_address(given: str, parallel: Any) -> str | tuple[str, int]:  # noqa: ANN401
    """The path of this engine's socket, or its host and port. Raises ValueError."""
    if not given:
        raise ValueError(f"{CONTROL} is not set")
    engine = int(getattr(parallel, "data_parallel_rank", 0) or 0)
    if given.startswith("/"):
        return f"{given}.{engine}" if engine else given
    host, _, port = given.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or not port.isdigit() or not 0 < int(port) + engine < 1 << 16:
        raise ValueError(f"{CONTROL} is {given!r}: must be the path of a socket, or 127.0.0.1:PORT")
    return "127.0.0.1", int(port) + engine


def read_token() -> str:
    """The token that callers must send as `Authorization: Bearer TOKEN`; empty: none is needed."""
    path = os.environ.get(TOKEN_FILE)
    token = Path(path).read_text(encoding="utf-8").strip() if path else ""
    if path and not token:
        raise ValueError(f"{TOKEN_FILE}: {path} is empty")
    return token


def start_control(address: str | tuple[str, int], knobs: Knobs, token: str, version: str) -> BaseServer:
    """Serve in a thread of its own. Raises OSError if it cannot listen, ValueError without a token it needs.

    A socket is its owner's alone (mode 0600); a port is open to every user of the host, so it needs a token.
    """
    handler = type("Handler", (_Handler,), {"knobs": knobs, "token": token, "version": version})
    if isinstance(address, tuple):
        if not token:
            raise ValueError(f"{CONTROL} is a port, which needs a token: set {TOKEN_FILE}")
        server: BaseServer = _Port(address, handler)
    else:
        server = _listen(Path(address), handler)
    threading.Thread(target=server.serve_forever, name="flettner control", daemon=True).start()
    return server


class _Port(TCPServer):
    allow_reuse_address = True


def _listen(path: Path, handler: "type[_Handler]") -> UnixStreamServer:
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(CLIENT_TIMEOUT_S)
            if client.connect_ex(str(path)) != ECONNREFUSED:
                raise OSError("another server listens there; each needs a path of its own")
        path.unlink()  # of a server that ended
    mask = os.umask(0o177)
    try:
        return UnixStreamServer(str(path), handler)
    finally:
        os.umask(mask)


class _Handler(BaseHTTPRequestHandler):
    knobs: Knobs
    token: str
    version: str
    timeout = CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        self._answer(lambda _: None)

    def do_PUT(self) -> None:
        self._answer(self.knobs.set)

    def _answer(self, act: Callable[[object], None]) -> None:
        try:
            document = self._read()
            self._check()
            act(document)
        except Refused as refused:
            self._send(refused.status, {"error": str(refused)})
        else:
            self._send(200, {"vllm": self.version, **self.knobs.show()})

    def _check(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.token and not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refused(401, "the token is missing or wrong")
        if self.path != "/knobs":
            raise Refused(404, f"{self.path}: only /knobs is here")

    def _read(self) -> object:
        """Before any refusal, which a client that still sends would not see."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MOST_BYTES:
            raise Refused(400, f"the body must have a Content-Length of at most {MOST_BYTES} bytes")
        try:
            return json.loads(self.rfile.read(int(length)) or b"null")
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {error}") from error

    def _send(self, status: int, document: Mapping[str, object]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged: there is one every few seconds."""
