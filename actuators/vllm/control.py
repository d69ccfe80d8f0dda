"""The control endpoint of a vLLM server whose scheduler class is flettner's: its limits change while it runs.

The environment variable FLETTNER_CONTROL of the server has the path of its socket (docs/live-limits.md).
"""

import asyncio
import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Any

import aiohttp

from flettner.actuators.host import procfs
from flettner.agent.domain.errors import ActError, DriftError
from flettner.agent.domain.model import HotKnobs, Server
from flettner.primitives.bounded import parse_json, read_body
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.live_limits import CONTROL, LIVE, NEEDED, SCHEDULER_CLASS
from flettner.vllm_facts.values import Knob, Setting

ANSWER_S = 2.0  # the endpoint has a thread of its own in the engine's process and answers in milliseconds
TRIES = 3  # the endpoint is not asked again after a launch; a busy machine stalls for seconds
MOST_BYTES = 65_536
CONFLICT = 409
OK = 200
_CREDENTIALS = struct.Struct("3i")  # ucred: pid, uid, gid


def control_path(env: Mapping[str, str]) -> Path | None:
    """Return the socket that this environment names, or None."""
    given = env.get(CONTROL, "")
    return Path(given) if given.startswith("/") else None


def with_own_control(env: Mapping[str, str], server: str) -> dict[str, str]:
    """Return the environment of another server, with a socket of its own beside that of the first server."""
    path = control_path(env)
    return dict(env) if path is None else {**env, CONTROL: str(path.with_name(f"{server}.sock"))}


def remove_own_socket(control: "ControlEndpoint | None", ended: Server) -> None:
    """Remove the socket of a server of ours, which has one of its own; without permission it stays."""
    if control is not None and ended.ours:
        with suppress(OSError):
            control.path.unlink()


@dataclass(frozen=True, slots=True)
class ControlEndpoint:
    """`main_pid`: of the first process of the server that names this socket; 0: unknown."""

    path: Path
    main_pid: int = field(default=0, compare=False)

    async def find_other_owner(self) -> int:
        """Return the pid of a listener that is no process of the server; 0 if it is one, or unknown."""
        listener = await self._find_listener()
        if not listener or not self.main_pid:
            return 0
        is_own = await asyncio.to_thread(procfs.descends_from, listener, self.main_pid)
        return listener if is_own is False else 0

    async def _find_listener(self) -> int:
        """0: nothing listens there, or in another pid namespace.

        The kernel keeps the credentials of the process that called listen(), and gives its pid as this
        process sees it.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                _, writer = await asyncio.open_unix_connection(self.path)
            try:
                credentials = writer.get_extra_info("socket").getsockopt(
                    SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size
                )
            finally:
                writer.transport.abort()
            return int(_CREDENTIALS.unpack(credentials)[0])
        return 0

    async def add_to(self, server: Server) -> Server:
        """The server with its hot knobs, and with the values in force that outlast a lease.

        Unchanged if the endpoint does not answer, or the server has several engines: each has its own.
        """
        if server.setting.get("data_parallel_size") not in (None, 1):
            return server
        for _ in range(TRIES):
            with suppress(ActError):
                return describe(server, await self._call("GET"))
        return server

    async def set(
        self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None
    ) -> None:
        """Raises DriftError for a number below the one in force and for another start, else ActError."""
        document = request_body(server, await self._call("GET"), values, number, lease_s)
        await self._call("PUT", document)

    async def _call(self, method: str, document: Mapping[str, object] | None = None) -> dict[str, Any]:
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.path))) as session,
                session.request(method, "http://engine/knobs", data=document and json.dumps(document)) as got,
            ):
                body = parse_json(await read_body(got, MOST_BYTES))
        except (TimeoutError, OSError, aiohttp.ClientError, ValueError) as error:
            raise ActError(f"{self.path}: no answer: {error!r:.200}") from error
        if not isinstance(body, dict):
            raise ActError(f"{self.path}: the answer is not an object")
        if got.status != OK:
            refused = DriftError if got.status == CONFLICT else ActError
            raise refused(f"{self.path}: refused: {body.get('error', got.status)!s:.300}")
        return body


def newest_epoch(servers: Sequence[Server]) -> int:
    """Return the newest epoch under which values were set; 0 if none were."""
    return max((server.hot.number[0] for server in servers if server.hot and server.hot.number), default=0)


def note_on_live_limits(servers: Sequence[Server], setting: Setting) -> tuple[str, ...]:
    """Note how a change of limits alone would be possible without a restart."""
    changed = {knob for server in servers for knob in setting if server.setting.get(knob) != setting[knob]}
    if not changed or not changed <= LIVE or any(server.hot is not None for server in servers):
        return ()
    silent = [server.name for server in servers if server.setting.get("scheduler_cls") == SCHEDULER_CLASS]
    if silent:
        note = (
            f"no restart would be needed if the control endpoint of {', '.join(silent)} answered: {CONTROL} "
            "must be set, and a line of its log that begins with `flettner:` says what is wrong "
            "(docs/live-limits.md)"
        )
        return (note,)
    return (f"no restart would be needed with {NEEDED} (docs/live-limits.md)",)


def request_body(
    server: Server,
    document: Mapping[str, Any],
    values: Setting,
    number: tuple[int, int],
    lease_s: float | None,
) -> dict[str, object]:
    """Return the body of a PUT to an endpoint with this document.

    Raises DriftError where a third party has started the server with other limits since: values that were
    chosen for the limits of before would take the place of the new ones. Raises ActError for a missing knob.
    """
    names = _wire_names(document, server.setting)
    start = document.get("start") or {}
    for knob, value in (server.hot.start if server.hot else {}).items():
        if knob in names and start.get(names[knob], value) != value:
            now = start[names[knob]]
            raise DriftError(f"{server.name} was started with {knob}={value}, and since then with {now}")
    if unknown := sorted(values.keys() - names.keys()):
        raise ActError(f"{server.name}: {', '.join(unknown)} cannot be changed while it runs")
    wire = {names[knob]: value for knob, value in values.items()}
    return {"number": list(number), "values": wire, "lease_s": lease_s}


def describe(server: Server, document: Mapping[str, Any]) -> Server:
    """Return the server with its endpoint's answer. Raises ActError if that is no answer of /knobs."""
    try:
        names = _wire_names(document, server.setting)
        start, current, limits = document["start"], document["kept"], document["limits"]
        changed = {knob: current[name] for knob, name in names.items() if current[name] != start[name]}
        number = document["number"] and (int(document["number"][0]), int(document["number"][1]))
        hot = HotKnobs(
            limits={knob: (limits[name][0], limits[name][1]) for knob, name in names.items()},
            start={knob: start[name] for knob, name in names.items()},
            number=number,
        )
    except (LookupError, TypeError, ValueError) as error:
        raise ActError(f"the control endpoint of {server.name} answers {document!r:.200}") from error
    return replace(server, setting={**server.setting, **changed}, hot=hot)


def _wire_names(document: Mapping[str, Any], setting: Setting) -> dict[Knob, str]:
    """By knob, its name at the endpoint.

    The cap and the token budget have a flag of their own where the release has one for the cap, and where
    the server was started with one for the budget; else they are `max_num_seqs`, `max_num_batched_tokens`.
    """
    version = str(document.get("vllm", ""))
    cap = "max_num_active_seqs" if KNOBS["max_num_active_seqs"].in_version(version) else "max_num_seqs"
    scheduled = setting.get("max_num_scheduled_tokens") is not None
    budget = "max_num_scheduled_tokens" if scheduled else "max_num_batched_tokens"
    candidates = {
        cap: "max_num_seqs",
        budget: "max_num_scheduled_tokens",
        "long_prefill_token_threshold": "long_prefill_token_threshold",
        "watermark": "watermark",
    }
    limits = document.get("limits") or {}
    return {knob: name for knob, name in candidates.items() if name in limits}
