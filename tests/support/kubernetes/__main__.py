"""A cluster to try things on, until Ctrl+C: `python -m tests.support.kubernetes [--namespaces PREFIX]`.

Prints the kubeconfig of its administrator. Each namespace whose name begins with the prefix gets a stand-in
node with N GPUs, so that its pods run: tests may borrow this cluster as they borrow a real one.
"""

import argparse
import asyncio
import signal
import sys

from tests.support.kubernetes.api import Api
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.namespace import LABEL
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.scheduler import Scheduler


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.kubernetes", description=__doc__)
    parser.add_argument("--namespaces", default="flettner-test", metavar="PREFIX")
    parser.add_argument("--gpus", type=int, default=2)
    options = parser.parse_args()
    with Cluster() as cluster:
        sys.stdout.write(f"{cluster.kubeconfig()}\n")
        sys.stdout.flush()
        asyncio.run(_until_interrupted(cluster, options.namespaces, options.gpus))


async def _until_interrupted(cluster: Cluster, prefix: str, gpus: int) -> None:
    async with cluster.api() as api:
        serving = asyncio.create_task(_serve(api, cluster, prefix, gpus))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        await asyncio.wait({serving})


async def _serve(api: Api, cluster: Cluster, prefix: str, gpus: int) -> None:
    """A node and a scheduler for each namespace while it is there."""
    nodes: dict[str, Node] = {}
    schedulers: dict[str, asyncio.Task[None]] = {}
    try:
        async for namespaces in api.states("/api/v1/namespaces"):
            names = {document["metadata"]["name"] for document in namespaces.values()}
            for name in (candidate for candidate in names - nodes.keys() if candidate.startswith(prefix)):
                folder, labels = cluster.folder / name, {LABEL: name}
                nodes[name] = Node(
                    api, cluster.network, folder, name=f"{name}-node", labels=labels, gpus=gpus
                )
                await nodes[name].start(name)
                schedulers[name] = asyncio.create_task(Scheduler(api, name, LABEL).run())
            for name in nodes.keys() - names:
                schedulers.pop(name).cancel()
                await nodes.pop(name).stop()
                await api.delete(f"/api/v1/nodes/{name}-node")
    finally:
        for name, node in nodes.items():
            schedulers[name].cancel()
            await node.stop()


if __name__ == "__main__":
    main()
