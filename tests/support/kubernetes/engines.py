"""An engine in the process of a test, over Deployments of the test cluster."""

import asyncio
from pathlib import Path

from flettner.actuators.kubernetes.engine import KubernetesEngine
from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.primitives.wall_clock import utc_now
from tests.support.helm import manifests, of_kind
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace

FLAGS = ("tiny", "--sim-start-s", "0.2", "--max-num-seqs", "8")
BLUE = Server(name="vllm", setting={})
GREEN = Server(name="chat-r1", setting={"model": "tiny", "sim_start_s": 0.2, "max_num_seqs": 16}, like="vllm")
CLAIM = {"accessMode": "ReadWriteOnce"}  # the API server of the tests is older than ReadWriteOncePod
ROLE: list[Json] = of_kind("Role", manifests({"mode": "approve"}))["rules"]


async def bind(
    here: Namespace,
    state_dir: Path,
    *rules: Json,
    epoch: int = 1,
    acts: bool = True,
    names: tuple[str, ...] = ("vllm",),
    kind: str = "deployments",
) -> KubernetesEngine:
    """With a ServiceAccount that has the rights of `rules`; without any: those of the documentation.

    `kind`: the option that has the names.
    """
    user = await here.user(f"flettner-{epoch}", *(rules or ROLE))
    options = KubernetesPlugin(kubeconfig=str(user), **{kind: names})  # type: ignore[arg-type]
    return options.bind(Site(target="chat", state_dir=state_dir, epoch=epoch, acts=acts))


async def with_green(here: Namespace, state_dir: Path, kind: str = "deployments") -> KubernetesEngine:
    """An engine of a workload that serves, and a promoted green; what is left is `retire(BLUE)`."""
    engine = await bind(here, state_dir, kind=kind)
    await engine.observe()
    await engine.launch(GREEN, 60)
    return engine


async def serve(here: Namespace, *flags: str, replicas: int = 1, **of_container: object) -> None:
    server = container(*FLAGS, *flags, **of_container)  # type: ignore[arg-type]
    await here.run(deployment("vllm", server, replicas=replicas))


def watched(engine: KubernetesEngine, server: Server) -> tuple[asyncio.Task[None], list[ServerLost]]:
    """Watch a server; the list gets what the watch reports."""
    lost: list[ServerLost] = []
    return asyncio.create_task(engine.watch(server, lost.append, utc_now)), lost


async def names(here: Namespace, kind: str) -> set[str]:
    return {item["metadata"]["name"] for item in await here.list(kind)}
