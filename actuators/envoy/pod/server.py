"""What a pod answers: to the kubelet whether it is ready, to the daemon what it has in force."""

import asyncio
from dataclasses import dataclass, field

from aiohttp import web

from flettner.actuators.envoy.pod.follow import RouteFollower
from flettner.actuators.envoy.pod.records import RecordBuffer
from flettner.actuators.envoy.pod.target import PodTarget
from flettner.clients.envoy_records.pods import RECORDS_PATH, STATUS_PATH

_UNAVAILABLE = 503


@dataclass(slots=True, kw_only=True)
class PodServer:
    """`/ready`, `/status?target=NAME&server=NAME` and `/records`. `leaving`: the pod ends."""

    targets: dict[str, PodTarget]
    follower: RouteFollower
    records: RecordBuffer
    leaving: bool = field(default=False, init=False)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/ready", self._ready)
        app.router.add_get(STATUS_PATH, self._status)
        app.router.add_get(RECORDS_PATH, self.records.serve)
        return app

    async def why_unready(self) -> str:
        """A pod is ready once it has the routes of all targets in force; empty if it is."""
        if self.leaving:
            return "it ends"
        if not self.follower.complete:
            return "the API server has not listed the routes yet"
        if not self.targets and not self.follower.unreadable:
            return "no route is published: does the daemon run, and not in mode advise?"
        new = {name: target for name, target in self.targets.items() if target.in_force is None}
        if new:
            return "; ".join(
                f"{name} has no route in force: {target.why or 'soon'}" for name, target in new.items()
            )
        if not self.targets:
            return "; ".join(f"{name}: {why}" for name, why in self.follower.unreadable.items())
        listening = await asyncio.gather(*(target.is_listening() for target in self.targets.values()))
        return "" if all(listening) else "Envoy does not listen"

    async def _ready(self, _: web.Request) -> web.Response:
        why = await self.why_unready()
        return web.Response(text=f"{why or 'ready'}\n", status=_UNAVAILABLE if why else 200)

    async def _status(self, request: web.Request) -> web.Response:
        target = self.targets.get(request.query.get("target", ""))
        if target is None:
            return web.json_response({"why": await self.why_unready()})
        server = request.query.get("server", "")
        return web.json_response(
            {
                "write": target.in_force.write if target.in_force else "",
                "refused": target.refused.write if target.refused else "",
                "why": target.why,
                "listening": not self.leaving and await target.is_listening(),
                "open": await target.in_flight(server) if server else None,
                "settled": await target.is_settled(),
            }
        )
