"""What happens to the cluster: faults of the API server, of pods and nodes, and other writers."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation import actions
from tests.simulation.kubernetes.manifest import args_of, manifest
from tests.simulation.kubernetes.network import AWAY, SLOW, STALLED, THROTTLED
from tests.simulation.kubernetes.world import FLETTNER, NAMESPACE
from tests.simulation.scenario import Act
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.memory.cluster import NODE_REMOVED_S
from tests.support.kubernetes.memory.pods import RunningPod
from tests.support.kubernetes.memory.server import RefusedError, Request

if TYPE_CHECKING:
    from tests.simulation.kubernetes.history import KubernetesHistory

LASTING = frozenset({AWAY, SLOW, THROTTLED, STALLED})
STATUS = {"exits": "exited", "hangs": "hung"}
EDITED = 6  # max_num_seqs, by a person
_APPLIES_EVERY_S = 20.0
Action = Callable[["KubernetesHistory", Act], bool]


def do(history: "KubernetesHistory", act: Act) -> bool:
    """Apply the act; False if it has no target yet."""
    what = act.what
    if what in LASTING:
        history.trouble(what, act.lasts_s)
        if what == AWAY:
            history.network.cut_watches()
        if what == STALLED:
            history.loop.outside(act.lasts_s + 0.01, history.network.catch_up)
        return True
    who, _, how = what.rpartition(" ")
    if how in {*STATUS, "errs"} and who in {"old server", "new server"}:
        return _break(history, how, new=who == "new server")
    if what in ACTIONS:
        return bool(history.observer.writer) and ACTIONS[what](history, act)
    return actions.do(history, act)


def write(
    history: "KubernetesHistory", method: str, plural: str, name: str, body: Json | None = None, *, by: str
) -> bool:
    """Another client than flettner writes; False if the API server refuses."""
    group = "/apis/apps/v1" if plural == "deployments" else "/api/v1"
    path = f"{group}/namespaces/{NAMESPACE}/{plural}"
    request = Request(
        method=method,
        path=path if method == "POST" else f"{path}/{name}",
        content=json.dumps(body or {}).encode(),
        kind="application/merge-patch+json",
        by=by,
    )
    try:
        history.world.cluster.server.handle(request)
    except RefusedError:
        return False
    return True


def _patch(change: Json) -> Action:
    def act_on(history: "KubernetesHistory", act: Act) -> bool:
        del act
        return write(history, "PATCH", "deployments", _name(history), change, by="kubectl-edit")

    return act_on


def _name(history: "KubernetesHistory") -> str:
    return history.random.choice(history.scenario.names)


def _pods(history: "KubernetesHistory") -> list[RunningPod]:
    return [pod for pod in history.world.cluster.pods.values() if pod.runs]


def _break(history: "KubernetesHistory", how: str, *, new: bool) -> bool:
    backends, greens = history.world.backends, history.observer.greens
    servers = [server for name, server in sorted(history.world.servers.items()) if (name in greens) is new]
    candidates = [backend for server in servers for backend in history.world.behind(server.address)]
    if not candidates:
        return False
    broken = history.random.choice(candidates)
    history.observer.harm()
    if how == "errs":
        broken.errors = actions.ERRS
        history.world.refresh()
        history.world.changed("errs", broken.pod.name, 0)
    else:
        backends.turn(broken, STATUS[how])
    return True


def _on_pod(do_to: Callable[["KubernetesHistory", RunningPod], object]) -> Action:
    def act_on(history: "KubernetesHistory", act: Act) -> bool:
        del act
        pods = _pods(history)
        if pods:
            history.observer.harm()
            do_to(history, history.random.choice(pods))
        return bool(pods)

    return act_on


def _delete_pod(history: "KubernetesHistory", pod: RunningPod) -> None:
    history.world.blame[history.world.backends.by_uid[pod.uid].deployment] = "kubectl"
    write(history, "DELETE", "pods", pod.name, by="kubectl")


def _lose_node(history: "KubernetesHistory", act: Act) -> bool:
    del act
    nodes = history.world.cluster.server.store.select("nodes")
    if len(nodes) < 2:
        return False
    history.observer.harm()
    history.world.cluster.lose_node(history.random.choice(nodes)["metadata"]["name"])
    return True


def _edit_flags(history: "KubernetesHistory", act: Act) -> bool:
    del act
    name = _name(history)
    body = manifest(name, history.scenario, seqs=EDITED)
    history.observer.edited(body)
    history.mixed = True
    return write(
        history,
        "PATCH",
        "deployments",
        name,
        {"spec": {"template": body["spec"]["template"]}},
        by="kubectl-edit",
    )


def _stop(history: "KubernetesHistory", act: Act) -> bool:
    del act
    name = _name(history)
    history.observer.stopped.add(name)
    history.observer.replicas[name] = history.scenario.replicas  # those that a person starts again
    return write(history, "PATCH", "deployments", name, {"spec": {"replicas": 0}}, by="kubectl-scale")


def _scale_up(history: "KubernetesHistory", act: Act) -> bool:
    """An autoscaler leaves a Deployment alone that is scaled to 0."""
    del act
    name = _name(history)
    deployment = history.world.document(name)
    if deployment is None or not deployment["spec"]["replicas"]:
        return False
    history.observer.replicas[name] = deployment["spec"]["replicas"] + 1
    change = {"spec": {"replicas": deployment["spec"]["replicas"] + 1}}
    return write(history, "PATCH", "deployments", name, change, by="horizontal-pod-autoscaler")


def _delete(history: "KubernetesHistory", act: Act) -> bool:
    del act
    return write(history, "DELETE", "deployments", _name(history), by="kubectl")


def _of_flettner(plural: str) -> Action:
    def delete(history: "KubernetesHistory", act: Act) -> bool:
        del act
        documents = history.world.cluster.server.store.select(plural, NAMESPACE)
        ours = [body for body in documents if "flettner.dev/server" in (body["metadata"].get("labels") or {})]
        if not ours:
            return False
        history.observer.harm()
        return write(history, "DELETE", plural, history.random.choice(ours)["metadata"]["name"], by="kubectl")

    return delete


def _pipeline(history: "KubernetesHistory", act: Act) -> bool:
    """A pipeline without a mark that flettner knows applies the old manifest again and again."""
    name, every_s = _name(history), min(act.lasts_s, _APPLIES_EVERY_S)

    def apply() -> None:
        if history.quiet:
            return
        deployment, wanted = history.world.document(name), manifest(name, history.scenario)
        if deployment is not None:
            history.mixed |= args_of(deployment) != args_of(wanted)
            template = {"spec": {"template": wanted["spec"]["template"]}}
            write(history, "PATCH", "deployments", name, template, by="kubectl-client-side-apply")
        history.loop.outside(every_s, apply)

    apply()
    return True


def argo(history: "KubernetesHistory", name: str) -> None:
    """Revert each change of the flags, as Argo CD with self-heal."""
    deployment, wanted = history.world.document(name), manifest(name, history.scenario)
    if deployment is not None and args_of(deployment) != args_of(wanted):
        template = {"spec": {"template": wanted["spec"]["template"]}}
        write(history, "PATCH", "deployments", name, template, by="argocd-application-controller")
    if not history.quiet:
        history.loop.outside(_APPLIES_EVERY_S, lambda: argo(history, name))


def _cut_watches(history: "KubernetesHistory", act: Act) -> bool:
    del act
    history.network.cut_watches()
    return True


def _compact(history: "KubernetesHistory", act: Act) -> bool:
    """What happened so far is forgotten, and the watches end."""
    history.world.cluster.server.store.forget_history()
    return _cut_watches(history, act)


ACTIONS: dict[str, Action] = {
    "watches cut": _cut_watches,
    "history compacted": _compact,
    "pod evicted": _on_pod(lambda _, pod: pod.fail("Evicted", "The node was low on resource: memory. ")),
    "pod deleted by hand": _on_pod(_delete_pod),
    "out of memory": _on_pod(lambda _, pod: pod.exit(137, "OOMKilled")),
    "node lost": _lose_node,
    "flags edited by hand": _edit_flags,
    "label added by hand": _patch({"metadata": {"labels": {"team": "search"}}}),
    "deployment scaled to 0 by hand": _stop,
    "deployment deleted by hand": _delete,
    "deployment paused by hand": _patch({"spec": {"paused": True}}),
    "green deleted by hand": _of_flettner("deployments"),
    "service deleted by hand": _of_flettner("services"),
    "autoscaler scales up": _scale_up,
    "pipeline applies the manifest": _pipeline,
}


def heal(history: "KubernetesHistory") -> None:
    """End all faults; a person lets each Deployment serve again that another person has ended."""
    actions.end_faults(history)
    history.network.catch_up()
    world = history.world
    for backend in [*world.backends.by_uid.values()]:
        backend.errors = 0.0
        if backend.status in {"hung", "wedged"}:
            world.backends.turn(backend, "healthy")
    history.add_nodes()
    history.add_wanted_node()
    history.loop.outside(NODE_REMOVED_S, history.add_nodes)  # in place of a node that was lost just before
    for name in history.scenario.names:
        deployment = world.document(name)
        if deployment is None:
            history.observer.replicas[name] = history.scenario.replicas
            write(history, "POST", "deployments", name, manifest(name, history.scenario), by="kubectl")
        elif not deployment["spec"]["replicas"] and not world.blame.get(
            deployment["metadata"]["uid"], ""
        ).startswith(FLETTNER):
            change = {"spec": {"replicas": history.scenario.replicas}}
            write(history, "PATCH", "deployments", name, change, by="kubectl-scale")
        if deployment is not None and deployment["spec"].get("paused"):
            write(history, "PATCH", "deployments", name, {"spec": {"paused": None}}, by="kubectl")
    actions.run_daemon(history)
