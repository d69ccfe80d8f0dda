"""The controller of the gateway: follows HTTPRoutes and Endpoints, programs Envoy, sets status conditions.

It accepts a route before it programs it, as real ones do: between both `lag_s` pass.
"""

import asyncio
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.process import find_binary
from tests.support.gateway.envoy_config import Place, bootstrap, cluster, places, route_table
from tests.support.gateway.schema import install
from tests.support.kubernetes.api import ApiError, Json
from tests.support.kubernetes.events import now
from tests.support.kubernetes.namespace import Namespace
from tests.support.ports import free_port

ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces"
NAME = "gate"
_CONTROLLER = "flettner.test/gateway"
_RESYNC_S = 2.0
_VERSIONS = {
    "cds": "cluster_manager.cds.version_text",
    "rds": "http.ingress.rds.main.version_text",
}
"""Where Envoy names the version of a file that is in force."""


class Gateway:
    """`async with Gateway(here) as gateway`; carries out the namespace's HTTPRoutes whose parent is `name`.

    `records`: the address that gets its access log. `refuses`: the name of a Service that it does not take.
    `away`: it does nothing while true.
    """

    def __init__(
        self, here: Namespace, *, lag_s: float = 0.2, port: int = 0, records: str = "", name: str = NAME
    ) -> None:
        self.here, self._lag_s, self._records, self._name = here, lag_s, records, name
        self.listen = f"127.0.0.1:{port or free_port()}"
        self.refuses, self.away = "", False
        self._home = Path(tempfile.mkdtemp(prefix="fl-gate-"))
        self._admin = Admin(self._home / "admin.sock")
        self._versions = itertools.count(1)
        self._routes: dict[str, Json] = {}
        self._endpoints: dict[str, Json] = {}
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._envoy: subprocess.Popen[bytes]
        self._in_force: set[Place] = set()

    async def __aenter__(self) -> Self:
        await install(self.here.api)
        self._write("cds", [])
        self._write("rds", [route_table([])])
        host, _, port = self.listen.partition(":")
        file = self._home / "bootstrap.json"
        file.write_text(json.dumps(bootstrap(str(self._home), host, int(port), self._records)))
        binary = find_binary("")
        assert binary is not None
        flags = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
        with (self._home / "envoy.log").open("wb") as log:
            self._envoy = subprocess.Popen([binary, "-c", str(file), *flags], stdout=log, stderr=log)
        while not await self._stat("listener_manager.total_listeners_active"):
            assert self._envoy.poll() is None, (self._home / "envoy.log").read_text()
            await asyncio.sleep(0.05)
        for work in (self._follow_routes(), self._follow_endpoints(), self._reconcile()):
            self._tasks.append(asyncio.create_task(work))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._envoy.kill()
        self._envoy.wait()
        shutil.rmtree(self._home)

    def path(self, name: str = "") -> str:
        return f"{ROUTES}/{self.here.name}/httproutes" + (f"/{name}" if name else "")

    async def create(self, name: str, *rules: Json) -> Json:
        """Return it once the gateway has accepted it."""
        body: Json = {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": name},
            "spec": {"parentRefs": [{"name": self._name}], "rules": list(rules)},
        }
        await self.here.api.create(self.path(), body)

        async def look() -> Json:
            document = await self.get(name)
            return document if _said(document) else {}

        return await self.here.eventually(look)

    async def get(self, name: str) -> Json:
        return await self.here.api.get(self.path(name))

    async def backends(self, name: str) -> dict[str, int]:
        """The weights of the first rule, by the names of Services."""
        refs = (await self.get(name))["spec"]["rules"][0]["backendRefs"]
        return {ref["name"]: ref["weight"] for ref in refs}

    # The controller.

    async def _follow_routes(self) -> None:
        async for routes in self.here.api.states(self.path()):
            mine = [
                route
                for route in routes.values()
                if {"name": self._name} in route["spec"].get("parentRefs", ())
            ]
            self._routes = {route["metadata"]["name"]: route for route in mine}
            self._change.set()

    async def _follow_endpoints(self) -> None:
        async for endpoints in self.here.api.states(self.here.path("endpoints")):
            self._endpoints = {document["metadata"]["name"]: document for document in endpoints.values()}
            self._change.set()

    async def _reconcile(self) -> None:
        """At each change, and at times besides: a Service may appear after the route that names it."""
        done = ""
        while True:
            try:
                async with asyncio.timeout(_RESYNC_S):
                    await self._change.wait()
            except TimeoutError:
                pass
            self._change.clear()
            if self.away:
                continue
            routes = list(self._routes.values())
            try:
                missing = await self._set_statuses(routes)
            except (ApiError, OSError) as error:  # the API server is away: what is in force stays
                if getattr(error, "status", 500) not in {404, 409, 500}:
                    raise
                continue
            wanted = {place: self._addresses(place) for place in places(routes) if place[0] not in missing}
            seen = json.dumps([sorted(wanted.items()), [route["spec"] for route in routes]], sort_keys=True)
            if seen != done:
                await asyncio.sleep(self._lag_s)
                await self._program(routes, wanted)
                done = seen

    def _addresses(self, place: Place) -> list[Place]:
        """Of the ready pods; the name of the port does not matter: each Service here has one."""
        subsets = self._endpoints.get(place[0], {}).get("subsets") or ()
        return [
            (endpoint["ip"], port["port"])
            for subset in subsets
            for endpoint in subset.get("addresses") or ()
            for port in subset["ports"][:1]
        ]

    async def _program(self, routes: list[Json], wanted: dict[Place, list[Place]]) -> None:
        """Clusters first, then the routes to them; what no route names any more goes last."""
        retained = {place: self._addresses(place) for place in self._in_force if place not in wanted}
        await self._put("cds", [cluster(*place) for place in {**retained, **wanted}.items()])
        await self._put("rds", [route_table(routes)])
        await self._put("cds", [cluster(*place) for place in wanted.items()])
        self._in_force = set(wanted)

    async def _put(self, kind: str, resources: Iterable[Json]) -> None:
        """Write a file and wait until it is in force."""
        version = self._write(kind, resources)
        while (await self._stat(_VERSIONS[kind])) != version:
            await asyncio.sleep(0.02)

    async def _stat(self, name: str) -> int | str | None:
        stats = await self._admin.stats("^" + name.replace(".", r"\.") + "$")
        return (stats or {}).get(name)

    def _write(self, kind: str, resources: Iterable[Json]) -> str:
        version = str(next(self._versions))
        text = json.dumps({"version_info": version, "resources": list(resources)})
        beside = self._home / f".{kind}.json"
        beside.write_text(text)
        beside.rename(self._home / f"{kind}.json")
        return version

    async def _set_statuses(self, routes: list[Json]) -> set[str]:
        """Say of each route whether it is accepted; return the Services that do not exist or are refused."""
        services = {item["metadata"]["name"] for item in await self.here.list("services")} - {self.refuses}
        missing: set[str] = set()
        for route in routes:
            lacking = sorted({name for name, _ in places([route])} - services)
            missing |= set(lacking)
            conditions = [
                _condition(route, "Accepted", holds=True, reason="Accepted"),
                _condition(route, "ResolvedRefs", holds=True, reason="ResolvedRefs")
                if not lacking
                else _condition(
                    route,
                    "ResolvedRefs",
                    holds=False,
                    reason="BackendNotFound",
                    message=f"no {', '.join(lacking)}",
                ),
            ]
            if _said(route) != [
                (condition["type"], condition["status"], condition["observedGeneration"])
                for condition in conditions
            ]:
                parent = {
                    "controllerName": _CONTROLLER,
                    "parentRef": {"name": self._name},
                    "conditions": conditions,
                }
                await self.here.api.patch(
                    self.path(f"{route['metadata']['name']}/status"), {"status": {"parents": [parent]}}
                )
        return missing


def _said(route: Json) -> list[tuple[str, str, int]]:
    parents = (route.get("status") or {}).get("parents") or [{}]
    return [
        (condition["type"], condition["status"], condition["observedGeneration"])
        for condition in parents[0].get("conditions") or ()
    ]


def _condition(route: Json, kind: str, *, holds: bool, reason: str, message: str = "as asked") -> Json:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "observedGeneration": route["metadata"]["generation"],
        "lastTransitionTime": now(),
        "reason": reason,
        "message": message,
    }
