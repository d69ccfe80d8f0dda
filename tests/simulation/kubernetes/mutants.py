"""Seeded bugs of the Kubernetes engine. CAUGHT holds the history that detects each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flettner.actuators.kubernetes import discovery, engine, green, handover, start
from flettner.actuators.kubernetes.discovery import ServerEntry
from flettner.actuators.kubernetes.handover import Handover
from flettner.actuators.kubernetes.labels import service_labels
from flettner.actuators.kubernetes.start import Starter
from flettner.actuators.kubernetes.watch import Watch
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.errors import ActError
from flettner.agent.runtime.effect_runner import EffectRunner
from flettner.clients.kubernetes.client import DEPLOYMENT, POD
from flettner.clients.kubernetes.documents import Json
from tests.simulation.kubernetes.scenario import ClusterScenario
from tests.simulation.mutants import Put
from tests.simulation.scenario import Act
from tests.simulation.traffic import SimTraffic


def ends_green_at_once(put: Put) -> None:
    """End green's pods when the name of its server resolves to others: clients know their addresses yet."""

    async def end_green(self: Handover, workload: Workload) -> None:
        await self.client.delete(DEPLOYMENT, workload.name)

    put(Handover, "end_green", end_green)


def switches_too_early(put: Put) -> None:
    """Let the name resolve to the operator's pods before they are ready."""

    async def nothing(*_: object) -> None:
        return

    async def join(self: Handover, workload: Workload) -> None:
        labels: Json = {"metadata": {"labels": service_labels(self.starter.site, self.new.server)}}
        for pod in await discovery.find_pods(self.client, workload):
            await self.client.patch(POD, pod.name, labels)

    put(Starter, "wait_until_available", nothing)
    put(Handover, "_join", join)


def deletes_the_old(put: Put) -> None:
    """Delete the Deployment that was replaced, whoever owns it."""
    plain = engine.KubernetesEngine.retire

    async def retire(self: engine.KubernetesEngine, server: Any) -> None:  # noqa: ANN401
        entry = (await self._find()).get(server.name)
        await plain(self, server)
        if entry is not None:
            await self._client.delete(DEPLOYMENT, entry.workload.name)

    put(engine.KubernetesEngine, "retire", retire)


def green_keeps_the_labels(put: Put) -> None:
    """Services of the operator, and the operator's Deployment, select green's pods."""

    def keep_labels(pattern: Workload, selectors: object) -> tuple[dict[str, str], tuple[str, ...]]:
        del selectors
        return dict(pattern.template["metadata"]["labels"]), ()

    put(green, "keep_labels", keep_labels)


def green_is_forgotten(put: Put) -> None:
    """Nothing of a failed or rolled back green is deleted."""

    async def remove_server(*_: object) -> None:
        return

    put(engine, "remove_server", remove_server)
    put(start, "remove_server", remove_server)


def writes_at_once(put: Put) -> None:
    """Write the flags into the operator's Deployment when green starts, before any verdict."""
    plain = Starter._create

    async def create(self: Starter, server: Any, entries: Any) -> ServerEntry:  # noqa: ANN401
        made = await plain(self, server, entries)
        theirs = next(entry for entry in entries.values() if not entry.workload.ours)
        change = {"spec": {"template": {"spec": {"containers": [_with(theirs.workload, server.setting)]}}}}
        await self.client.patch(DEPLOYMENT, theirs.workload.name, change)
        return made

    put(Starter, "_create", create)


def _with(workload: Workload, setting: Any) -> Json:  # noqa: ANN401
    return workload.container_document | workload.with_setting(setting)


def forgets_the_replicas(put: Put) -> None:
    """Scale the operator's Deployment up to one pod, whatever it had."""
    put(Workload, "usual_replicas", 1)
    put(Workload, "remembered_replicas", 0)


def ignores_the_owner(put: Put) -> None:
    """Change a Deployment that Argo CD owns."""
    put(Workload, "owner", "")


def ignores_the_fence(put: Put) -> None:
    def check_fence(*_: object) -> None:
        return

    async def nothing(_: EffectRunner) -> None:
        return

    for module in (discovery, engine):
        put(module, "check_fence", check_fence)
    put(EffectRunner, "_check_epoch", nothing)
    put(SimTraffic, "_fence", lambda _: None)


def overwrites_other_writers(put: Put) -> None:
    """Write without the version that was read."""
    plain = handover.json_patch

    def json_patch(*given: Any) -> list[Json]:  # noqa: ANN401
        return [operation for operation in plain(*given) if operation["path"] != "/metadata/resourceVersion"]

    put(handover, "json_patch", json_patch)


def fights_for_the_flags(put: Put) -> None:
    """Write the flags again whenever somebody else has changed them."""
    plain = Handover._change

    async def change(self: Handover) -> Workload:
        for _ in range(99):
            try:
                return await plain(self)
            except ActError:
                continue
        raise ActError("given up")

    put(Handover, "_change", change)


def trusts_the_flags_found(put: Put) -> None:
    """Compare with the flags that the watch found when it began, not with those that the caller knows."""
    plain = Watch.until_gone

    async def until_gone(self: Watch) -> Any:  # noqa: ANN401
        self.setting = self.workload.serve.setting
        return await plain(self)

    put(Watch, "until_gone", until_gone)


MUTANTS: dict[str, Callable[[Put], None]] = {
    "ends green at once": ends_green_at_once,
    "switches too early": switches_too_early,
    "deletes the old": deletes_the_old,
    "green keeps the labels": green_keeps_the_labels,
    "green is forgotten": green_is_forgotten,
    "writes at once": writes_at_once,
    "forgets the replicas": forgets_the_replicas,
    "ignores the owner": ignores_the_owner,
    "ignores the fence": ignores_the_fence,
    "overwrites other writers": overwrites_other_writers,
    "fights for the flags": fights_for_the_flags,
    "trusts the flags found": trusts_the_flags_found,
}

PLAIN = ClusterScenario(seed=0)

CAUGHT: dict[str, tuple[ClusterScenario, str]] = {
    "ends green at once": (PLAIN, "1: "),
    "switches too early": (replace(PLAIN, boots_s=(40.0, 44.0)), "1: "),
    "deletes the old": (PLAIN, "8: "),
    "green keeps the labels": (replace(PLAIN, green="failing"), "1: "),
    "green is forgotten": (replace(PLAIN, green="failing"), "3: "),
    "writes at once": (PLAIN, "8: "),
    "forgets the replicas": (replace(PLAIN, replicas=2), "3: "),
    "ignores the owner": (replace(PLAIN, writer="KServe"), "8: "),
    "ignores the fence": (
        replace(PLAIN, acts=(Act(what="daemon paused and replaced", on="phase launching"),)),
        "5: ",
    ),
    "overwrites other writers": (replace(PLAIN, acts=(Act(what="conflict", on="write", nth=6),)), "8: "),
    "fights for the flags": (
        replace(PLAIN, acts=(Act(what="pipeline applies the manifest", on="phase promoting", lasts_s=2.0),)),
        "8: ",
    ),
    "trusts the flags found": (
        replace(
            PLAIN,
            seed=6,
            strategy="swap",
            acts=(
                Act(what="daemon killed", on="phase promoting", lasts_s=10.0),
                Act(what="pipeline applies the manifest", on="phase promoting", lasts_s=20.0),
            ),
        ),
        "3: ",
    ),
}
"""The smallest history that detects each bug, and the violated invariant."""
