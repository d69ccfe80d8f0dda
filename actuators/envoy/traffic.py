"""The bound proxy: writes the files of the Envoy of all targets, and waits until it has them in force."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from flettner.actuators.envoy import hold, obstacles, resources
from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.apply import ConfigExchange
from flettner.actuators.envoy.fence import THIS_PROCESS, Writer
from flettner.actuators.envoy.files import KINDS, XdsFiles
from flettner.actuators.envoy.options import EnvoyOptions
from flettner.actuators.envoy.process import EnvoyProcess, find_binary
from flettner.actuators.envoy.reported_config import ReportedConfig
from flettner.actuators.envoy.response_file import BrokenFileError, replace_response
from flettner.actuators.envoy.routes import routes
from flettner.actuators.envoy.split import CarriedWeights, Json, carried_by, metadata_of, spend_lease
from flettner.actuators.envoy.union import targets
from flettner.actuators.shared.split import check
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.model import Hold
from flettner.agent.domain.ports import Site, TrafficSeen
from flettner.clients.envoy_records.record import cluster_name, envoy_home, records_socket
from flettner.primitives.waiting import poll_until

RENEWED_WITHIN = 1 / 3
"""Of a lease: so long a renewal is waited for. It begins when a third is spent, or a second later (the
daemon's tick), so that it is over before the lease is; from 6 s on a second try fits in as well."""

_ASK_EVERY_S = 0.25
_UPTIMES = 3  # of the flush before the route, of one that may have begun before it, of one begun after it
_LAST_S = 1.0  # Envoy removes a listener within milliseconds


class EnvoyTraffic:
    """The common Envoy, for the routes of one target.

    `home`: the folder of its files and sockets. `starts`: false if a Runner starts Envoy once its files are
    there.
    """

    counts_requests: ClassVar[bool] = True

    def __init__(self, options: EnvoyOptions, site: Site, *, starts: bool = True) -> None:
        self._options = options
        self._site = site
        self._starts = starts
        self.home = envoy_home(site.state_dir)
        self.files = XdsFiles(self.home, site.target)
        self._writer = Writer(epoch=site.epoch, process=THIS_PROCESS)
        self._process = EnvoyProcess(self.home)
        self._reported = ReportedConfig(Admin(self.home / "admin.sock"), site.target)
        self._turn = asyncio.Lock()
        self._claimed = False  # this target has acted under its epoch
        self._listening_pid: int | None = None  # the process in which its listener was seen
        self._uptimes_s: set[int] = set()  # what Envoy reported since the last route

    @property
    def listen(self) -> str:
        return self._options.listen

    @property
    def hold(self) -> Hold | None:
        return self._options.hold

    async def problems(self) -> Sequence[str]:
        listens = await self._listens()
        problems = [
            obstacles.no_binary(self._options.binary),
            obstacles.long_path(records_socket(self.home)),
            "" if listens else obstacles.port_taken(self._options.address),
            await asyncio.to_thread(obstacles.bad_folder, self.home),
        ]
        return [why for why in problems if why]

    async def observe(self) -> TrafficSeen | None:
        """Without weights if a route exists, but neither its file is readable nor Envoy answers."""
        if not self.files.exist():
            return None
        carried = await self._carried()
        clusters = await self._clusters()
        return TrafficSeen(
            weights=carried.weights if carried else {},
            addresses={
                name: resources.address_of(cluster)
                for name, cluster in clusters.items()
                if name != hold.OPENED
            },
            epoch=max(self._newest_epoch(), carried.epoch if carried else 0),
            leased=carried.leased if carried else None,
            listening=await self._listens(),
        )

    def _newest_epoch(self) -> int:
        """That of the target: another target of this daemon may have registered its epoch before."""
        newest = self.files.newest()
        others = newest == self._writer and not self._claimed
        return self.files.written_by() if others else newest.epoch

    async def _listens(self) -> bool:
        return self._process.find() is not None and await self._reported.listening()

    async def _carried(self) -> CarriedWeights | None:
        """The route from the file, or from Envoy if the file is missing or broken."""
        try:
            if carried := self.files.carried():
                return carried
        except BrokenFileError:
            pass  # Envoy keeps what it read before
        try:
            return carried_by(await self._reported.resources("rds"))
        except ValueError:
            return None

    async def _clusters(self) -> dict[str, Json]:
        try:
            return self.files.clusters()
        except BrokenFileError:
            return {
                resources.server_of(cluster): cluster for cluster in await self._reported.resources("cds")
            }

    async def route(self, route: Route) -> None:
        check(route)
        async with self._turn:
            await self._route(route)

    def _exchange(self, route: Route) -> ConfigExchange:
        return ConfigExchange(
            files=self.files,
            reported=self._reported,
            process=self._process,
            writer=self._writer,
            number=route.number,
            within_s=self._options.confirm_s,
        )

    def _split(self, route: Route) -> Json:
        metadata = metadata_of(route, epoch=self._site.epoch)
        target = self._site.target
        header, held = self._options.session_header, self._options.hold
        return routes(route, target=target, metadata=metadata, session_header=header, held=held)

    def _listener(self) -> Json:
        return resources.listener(
            self.files.path("rds"),
            target=self._site.target,
            listen=self._options.address,
            report_every_s=self._options.report_every_s,
            session_header=self._options.session_header,
            open_routes=self._options.open_routes,
        )

    async def _route(self, route: Route) -> None:
        """Add servers, then move traffic, then remove servers: no share ever refers to an unknown server.

        When a closed route opens, what waits continues at the first of the three. `hold.OPENED` stays until
        the next route, for what still comes by the closed one.
        """
        target = self._site.target
        wanted = {server.name: resources.cluster(server, target=target) for server in route.servers}
        # A rollback does not wait until Envoy has found the address of a server that gets no traffic.
        served = {name for name, weight in route.weights.items() if weight} | {route.fallback}
        idle = {cluster_name(target, name) for name in wanted.keys() - served}
        carried = await self._carried()
        await self._claim(carried)
        opened = {}
        if carried and carried.closed_s and not route.closed_s:
            waiting = next(server for server in route.servers if server.name == route.fallback)
            opened[hold.OPENED] = resources.cluster(waiting, target=target, alias=hold.OPENED)
        exchange = self._exchange(route)
        try:
            if self._process.find() is None:
                await self._place(exchange, route, wanted)
                await self._start()
            await exchange.ensure("cds", *{**await self._clusters(), **wanted}.values(), may_warm=idle)
            if carried:
                await self._until_resolved(route, carried, wanted)
            if opened:
                wanted |= opened
                await exchange.ensure("cds", *{**await self._clusters(), **wanted}.values(), may_warm=idle)
            if not self.files.is_usable("rds"):  # a listener takes requests once it has routes
                await exchange.place("rds", resources.response(str(exchange.version()), self._split(route)))
            await exchange.ensure("lds", self._listener())
            await exchange.give("rds", self._split(route))
            self._uptimes_s.clear()
            await exchange.ensure("cds", *wanted.values(), may_warm=idle)
        except FencedError:
            raise  # nothing here is ours to restore
        except ActError:
            await exchange.roll_back()
            await self.files.shared(self._writer, self._end_unused)
            raise

    async def _until_resolved(
        self, route: Route, carried: CarriedWeights, wanted: Mapping[str, Json]
    ) -> None:
        """Wait for the address of each server that gets its first share: Envoy fails requests without one.

        Envoy takes a cluster whose name it could not look up, without an address. Raises ActError.
        """
        admin, within_s = self._reported.admin, self._options.confirm_s
        for server, weight in route.weights.items():
            if not weight or carried.weights.get(server):
                continue
            count_hosts = partial(admin.hosts, cluster_name(self._site.target, server))
            if not await poll_until(count_hosts, _ASK_EVERY_S, within_s):
                raise ActError(
                    f"Envoy found no address for {resources.address_of(wanted[server])} ({server}) in"
                    f" {within_s:g} s, so that it gets no traffic: look at the name server of this host"
                )

    def _end_unused(self) -> None:
        """End an Envoy that serves no target."""
        if self._starts and not targets(self.home):
            self._process.end()

    async def _claim(self, carried: CarriedWeights | None) -> None:
        """Exclude older daemons, so that they do not change the state read next."""
        epoch = self._site.epoch
        if carried and carried.epoch > epoch:
            raise FencedError(f"Envoy carries a route of epoch {carried.epoch}, this daemon is {epoch}")
        newest = self.files.newest()
        self._writer.refuse_after(newest)
        if newest != self._writer:
            await self.files.claim(self._writer)
        self._claimed = True

    async def _place(self, exchange: ConfigExchange, route: Route, wanted: dict[str, Json]) -> None:
        """Write the files that Envoy needs for its start, if they are missing or broken."""
        version = str(exchange.version())
        contents = {
            "cds": resources.response(version, *wanted.values()),
            "rds": resources.response(version, self._split(route)),
            "lds": resources.response(version, self._listener()),
        }
        for kind, content in contents.items():
            if not self.files.is_usable(kind):
                await exchange.place(kind, content)

    async def _start(self) -> None:
        binary = find_binary(self._options.binary)
        problems = await self.problems()
        if problems or binary is None:
            raise ActError("cannot start Envoy: " + "; ".join(problems))
        written, started = await self.files.shared(self._writer, partial(self._started, binary))
        try:
            await self._process.until_it_answers(binary, written, is_child=self._starts)
        except ActError:
            if started:
                await self.files.shared(self._writer, self._process.end)
            raise

    def _started(self, binary: str) -> tuple[int, bool]:
        """Start Envoy, unless another target or a newer daemon has: two would share the port's connections.

        Returns the size of its log before, and whether it was started here.
        """
        written = self._process.log_size()
        if self._process.find() is not None:
            return written, False
        self.files.unite()
        replace_response(self._process.bootstrap, resources.bootstrap(self.home))
        if not self._starts:
            return written, False
        return self._process.start(binary, concurrency=self._options.concurrency), True

    async def keep_alive(self, route: Route) -> None:
        """Write a route that the files lack, unless they have a later one of this daemon."""
        check(route)
        async with self._turn:
            whole = all(self.files.is_usable(kind) for kind in KINDS)
            carried = await self._carried() if whole else None
            await self._claim(carried)
            if carried and (carried.epoch, carried.number) > (self._site.epoch, route.number):
                return
            if carried is None or not carried.is_of(route):
                await self._route(route)
                return
            if not await self._serves():
                await self._serve(route)
            if carried.is_due():
                renewing = self._exchange(route)
                renewing.within_s = min(self._options.confirm_s, route.lease_s * RENEWED_WITHIN)
                await renewing.give("rds", self._split(route))

    async def _serves(self) -> bool:
        """True if Envoy runs and listens, which is asked once of each Envoy."""
        pid = self._process.pid() or self._process.find()
        if pid is not None and pid != self._listening_pid and await self._reported.listening():
            self._listening_pid = pid
        return pid is not None and pid == self._listening_pid

    async def _serve(self, route: Route) -> None:
        """Start Envoy with the files of all targets, and mend what it does not have of this one."""
        if self._process.find() is None:
            await self._start()
        if not await self._serves():  # the port may have been taken when Envoy started for another target
            await self._route(route)

    async def end_lease(self) -> bool:
        """Write the same files with an expired lease, as after a long absence of the daemon."""
        async with self._turn:
            response, carried = self.files.read("rds"), self.files.carried()
            if response is None or carried is None or carried.leased is None:
                return False
            exchange = ConfigExchange(
                files=self.files,
                reported=self._reported,
                process=self._process,
                writer=self.files.newest(),  # in the name of the daemon that has ended
                number=carried.number,
                within_s=self._options.confirm_s,
            )
            (configuration,) = response[1]
            spent = spend_lease(configuration)
            if self._process.find() is None:
                await exchange.place("rds", resources.response(str(exchange.version()), spent))
            else:
                await exchange.give("rds", spent)
            return True

    async def in_flight(self, server: str) -> int | None:
        """0 for a server that Envoy does not know."""
        name = cluster_name(self._site.target, server)
        return await self._reported.admin.open_requests(name)

    async def is_settled(self) -> bool:
        """Envoy's main thread says that routes are in force; a worker without CPU still uses those before.

        Of three uptimes since the route, the last is from a flush of statistics that began after it, and a
        flush ends when each worker has taken part, after the routes that it was given before.
        """
        uptime_s = await self._reported.admin.uptime_s()
        if uptime_s is not None:
            self._uptimes_s.add(uptime_s)
        return len(self._uptimes_s) >= _UPTIMES

    async def way_back(self) -> list[str]:
        """Steps for the operator, as sentences, once no client uses the proxy."""
        pid = self._process.find()
        return (
            [f"once no client asks {self.listen} or another target's address any more, end Envoy: kill {pid}"]
            if pid
            else []
        )

    async def leave(self, quiet_s: float, wait_s: float) -> bool:
        """Remove the target's listener once it got no request for `quiet_s`; end an unused Envoy.

        Return false, and change nothing, if clients still ask after `wait_s`. Raises ActError.
        """
        if self._process.find() is not None:
            if not await self._is_quiet(quiet_s, wait_s):
                return False
            await self.files.put("lds", None, writer=self._writer)
            await self._is_quiet(_LAST_S, wait_s)  # what came in the last moment ends
        async with self._turn:
            for kind in KINDS:
                await self.files.put(kind, None, writer=self._writer)
            await self.files.shared(self._writer, self._end_unused)
        return True

    async def _is_quiet(self, quiet_s: float, wait_s: float) -> bool:
        """Wait until no request is open, and none has come for `quiet_s`; false after `wait_s`."""
        clock = asyncio.get_running_loop().time
        end_s, since_s, earlier = clock() + wait_s, clock(), None
        while (now_s := clock()) <= end_s:
            seen = await self._reported.admin.count_requests(self._site.target)
            if seen is None:
                raise ActError(f"Envoy runs, but does not answer on {self._reported.admin.socket}")
            if seen.open or seen.total != earlier:
                since_s, earlier = now_s, seen.total
            elif now_s - since_s >= quiet_s:
                return True
            await asyncio.sleep(_ASK_EVERY_S)
        return False

    async def stop(self) -> None:
        """Cut the requests of all targets and end Envoy, for tests and demos. The files stay."""
        async with self._turn:
            await self._process.kill()
