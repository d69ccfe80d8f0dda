"""What Envoys in pods cost: seconds until a route is in force, and CPU and memory of a pod.

    python -m bench.envoy_pods [--routes 40] [--targets 20] [--seconds 20]

Two pods on the cluster of the tests (`scripts/kubernetes install`): a real API server, pods as processes of
this host. Prints one JSON line. A busy machine makes all of it slower.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.results import new_parser, write
from bench.usage import Usage, usage_of
from flettner.actuators.envoy_deployment.plugin import EnvoyDeploymentPlugin
from flettner.actuators.envoy_deployment.traffic import DeploymentTraffic
from flettner.actuators.host import procfs
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.engines import ROLE
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY, create_proxy, proxy_pods

BLUE, GREEN = (
    Server(name=name, setting={}, address=f"10.0.0.1:{port}") for name, port in (("a", 1), ("b", 2))
)


def canary(number: int) -> Route:
    weights = {BLUE.name: 99 - number % 99, GREEN.name: 1 + number % 99}
    return Route(
        number=number,
        servers=(BLUE, GREEN),
        weights=weights,
        fallback=BLUE.name,
        leased=GREEN.name,
        lease_s=15.0,
    )


async def timed(times: int, act: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    """Return the milliseconds of each call."""
    clock, took_ms = asyncio.get_running_loop().time, []
    for number in range(times):
        since_s = clock()
        await act(number)
        took_ms.append(1000 * (clock() - since_s))
    return {"p50_ms": round(quantiles(took_ms)[1]), "max_ms": round(max(took_ms))}


def usage_by_program(pods: set[str]) -> dict[str, Usage]:
    """Return the usage of the pods' processes."""
    pids: dict[str, list[int]] = {}
    for process in procfs.processes():
        words = procfs.words(process.pid)
        program = "envoy" if words and words[0].endswith("/envoy") else "program"
        ours = any(pod in word for pod in pods for word in words)
        if ours and (program == "envoy" or words[1:3] == ["-m", "flettner.actuators.envoy.pod"]):
            pids.setdefault(program, []).append(process.pid)
    return {program: usage_of(*processes) for program, processes in pids.items()}


async def measure(here: Namespace, routes: int, targets: int, seconds: float) -> dict[str, Any]:
    user = await here.user("daemon", *ROLE)
    await create_proxy(here)

    def bind(number: int) -> DeploymentTraffic:
        plugin = EnvoyDeploymentPlugin(
            kubeconfig=str(user), listen=f"0.0.0.0:{8100 + number}", confirm_s=60.0
        )
        return plugin.bind(Site(target=f"chat-{number}", state_dir=Path("/nowhere"), epoch=1))

    traffic = bind(0)
    await traffic.route(canary(0))
    await here.available(PROXY)
    changes = await timed(routes, lambda number: traffic.route(canary(number + 1)))
    for number in range(1, targets):
        await bind(number).route(canary(0))
    pods = {pod["metadata"]["name"] for pod in await proxy_pods(here)}
    before = usage_by_program(pods)
    await asyncio.sleep(seconds)
    after = usage_by_program(pods)
    return {
        "route_in_force": changes,
        "targets": targets,
        "pods": {
            name: {
                "cpu_percent": round(100 * (now.cpu_s - before[name].cpu_s) / seconds / len(pods), 1),
                "mib": round(now.rss_mib / len(pods)),
            }
            for name, now in after.items()
        },
    }


async def run(routes: int, targets: int, seconds: float) -> dict[str, Any]:
    with Cluster() as cluster:
        async with Namespace(cluster) as here:
            return await measure(here, routes, targets, seconds)


def main() -> None:
    parser = new_parser("bench.envoy_pods", __doc__, "envoy_pods.json")
    parser.add_argument("--routes", type=int, default=40)
    parser.add_argument("--targets", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    report = asyncio.run(run(options.routes, options.targets, options.seconds))
    print(json.dumps(report))
    write(options.json, report)


if __name__ == "__main__":
    main()
