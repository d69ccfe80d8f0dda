"""Compute what a change takes before anything is changed: obstacles, strategy, times.

The free GPUs of the nodes cannot be read with rights in one namespace. What is known: a pod that waits for a
node, and the last start that found none. A green that no node takes is reported by the scheduler once it is
created (see `start`). What the API server itself would refuse, such as an exceeded quota, a dry run shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from flettner.actuators.kubernetes import statefulset
from flettner.actuators.kubernetes.autoscaler import find_conflict
from flettner.actuators.kubernetes.discovery import ServerEntry
from flettner.actuators.kubernetes.green import find_selectors, keep_labels, make_deployment
from flettner.actuators.kubernetes.manifest_patch import make_patch
from flettner.actuators.kubernetes.pods import Pod
from flettner.actuators.kubernetes.upgrade import upgraded
from flettner.actuators.kubernetes.workload import Workload, count_gpus
from flettner.actuators.vllm.gpu_demand import gpus_needed
from flettner.actuators.vllm.host_demand import describe_host_shortage
from flettner.actuators.vllm.serve_command import http_obstacles
from flettner.actuators.vllm.server_state import describe_lost_state
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Site
from flettner.agent.machine.strategy import HostCapacity, StrategyChoice, choose_strategy
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient, Reader
from flettner.clients.kubernetes.documents import Json
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Setting

_STOP_S = 30.0  # assumed if no stop was measured: the default grace period of a pod
_START_S = 300.0  # assumed if no start was measured


def obstacles(workload: Workload) -> tuple[str, ...]:
    """Return why no like Deployment can be made, each with the fix; empty: it can."""
    problems = [workload.problem] if workload.problem else []
    problems += http_obstacles(workload.serve.setting)
    if workload.selects_by_expressions:
        problems.append("its selector has matchExpressions, which a Service has not: write matchLabels alone")
    if workload.paused:
        problems.append("it is paused, so that new flags reach no pod: `kubectl rollout resume` it")
    return (*problems, *statefulset.find_obstacles(workload))


def start_key(workload: Workload) -> str:
    """Return the key of StartTimes: starts of the same image and model take about as long."""
    return f"{workload.container_document.get('image', '')} {workload.serve.setting.get('model', '')}"


async def preflight(
    client: KubernetesClient,
    site: Site,
    blues: Sequence[ServerEntry],
    green: Server,
    choice: StrategyChoice,
    times: StartTimes,
) -> PreflightResult:
    """`blues`: the servers that serve now; `green`: made like the last one. Raises ActError."""
    pattern = blues[-1]
    if choice.strategy is None:
        return PreflightResult(problem=choice.why)
    for blue in blues:
        if problem := "; ".join(obstacles(blue.workload)):
            return PreflightResult(problem=f"{blue.workload.name}: {problem}")
        if problem := describe_update(blue.workload):
            return PreflightResult(problem=problem)
    if problem := describe_other_gpus(pattern.workload, green.setting):
        return PreflightResult(problem=problem, lasting=True)
    limit, where = pattern.workload.memory_limit, f"a pod of {pattern.workload.name} has a limit of"
    if problem := describe_host_shortage(green.setting, limit, where):
        return PreflightResult(problem=problem, lasting=True)
    selectors = await find_selectors(client, pattern.workload)
    try:
        body = make_deployment(site, green, pattern.workload, selectors)
        patches = [make_patch(blue.workload, green.setting, green.start) for blue in blues]
        template = upgraded(pattern.workload, green.start)
    except FlagError as error:
        return PreflightResult(problem=str(error), lasting=True)
    patch = "---\n".join(filter(None, patches))
    if owned := [blue.workload for blue in blues if blue.workload.owner]:
        return _commit(owned[0], patch)
    if site.acts and (problem := await _find_refusal(client, blues, body)):
        return PreflightResult(problem=problem)
    notes = _notes(pattern.workload, selectors)
    return replace(_predict(template, choice.strategy, times, notes), why=choice.why, patch=patch)


async def preflight_saving(
    client: KubernetesClient, blues: Sequence[ServerEntry], times: StartTimes
) -> PreflightResult:
    """Whether these can have fewer pods.

    An autoscaler, or the writer of a manifest, would give them back; a rolling update ends pods itself.

    Raises ActError.
    """
    for blue in blues:
        if owner := blue.workload.owner:
            why = f"{owner} writes {blue.workload.full_name} and would give the pods back"
            return PreflightResult(problem=f"{why}: lower its replicas there")
        if problem := describe_update(blue.workload):
            return PreflightResult(problem=problem)
    if conflict := await find_conflict(client, [blue.workload for blue in blues]):
        return PreflightResult(problem=conflict)
    notes: list[str] = []
    return replace(_predict(blues[-1].workload, "save", times, notes), outage_s=0.0)


async def _find_refusal(client: KubernetesClient, blues: Sequence[ServerEntry], body: Json) -> str:
    """Return what the cluster would do against the rollout; empty: nothing. `body`: green's Deployment."""
    if conflict := await find_conflict(client, [blue.workload for blue in blues]):
        return conflict
    try:
        await client.create(kubernetes.DEPLOYMENT, body, dry_run=True)
    except ActError as error:
        return error.why
    return ""


def describe_update(workload: Workload) -> str:
    """Why its pods are not chosen now, while their controller replaces them; empty: it does not."""
    if not workload.older_pods:
        return ""
    return (
        f"{workload.name}: {workload.older_pods} of its pods have older flags: its rolling update is not "
        f"over; see `kubectl rollout status {workload.resource.__name__.lower()}/{workload.name}`"
    )


def describe_other_gpus(workload: Workload, setting: Setting) -> str:
    """Why the pods, as the manifest has them, do not fit this layout; empty: they do, or have no GPUs."""
    has, needed = workload.gpus, gpus_needed(setting)
    if not has or needed == gpus_needed(workload.serve.setting) or needed == has:
        return ""
    return (
        f"this layout needs {needed} GPUs, and a pod of {workload.name} has a limit of {has}, which flettner "
        "does not change: write the limit and the flags in its manifest"
    )


def _commit(workload: Workload, patch: str) -> PreflightResult:
    """Leave a workload to the controller or GitOps that writes it: the suggestion names the change there."""
    why = f"{workload.owner} writes {workload.full_name} and would revert a change"
    how = "write the change of the patch there" if workload.controller else "commit the patch"
    if not patch:
        how = "make the change there by hand: its lines hold a secret"
    return PreflightResult(owner=workload.owner, patch=patch, why=why, notes=(f"{why}: {how}",))


def _predict(template: Workload, strategy: Strategy, times: StartTimes, notes: list[str]) -> PreflightResult:
    key = start_key(template)
    start_s = times.expected(key, None)
    notes.append(
        "a start: its time is as measured for the last ones"
        if start_s
        else "a start: none of this image and model was measured yet"
    )
    outage_s = 0.0
    if strategy == "swap":
        stop_s, assumed = times.expected_part(key, "stop") or _STOP_S, "" if start_s else " (assumed)"
        outage_s = stop_s + (start_s or _START_S)
        notes.insert(0, f"the outage: {stop_s:.0f} s to stop, {start_s or _START_S:.0f} s to start{assumed}")
    return PreflightResult(
        strategy=strategy,
        start_s=start_s,
        deadline_s=times.learned(key, None),
        outage_s=outage_s,
        notes=tuple(notes),
    )


def _notes(workload: Workload, selectors: Sequence[Mapping[str, str]]) -> list[str]:
    notes = [*describe_lost_state(workload.variables)]
    _, dropped = keep_labels(workload, selectors)
    if dropped:
        notes.append(
            f"green's pods lack the labels {', '.join(dropped)}, by which Services or disruption budgets "
            "select: a NetworkPolicy or a monitor that selects by them does not apply to green"
        )
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in workload.template["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]
    if claims:
        notes.append(
            f"green uses the same claims ({', '.join(claims)}); ReadWriteOnce binds it to their node"
        )
    if own := statefulset.describe_claims(workload):
        notes.append(
            f"each pod of green gets claims of its own ({', '.join(own)}), which end with it: "
            "a model that it keeps there is downloaded again"
        )
    if workload.labels.get("app.kubernetes.io/managed-by") == "Helm":
        notes.append(
            f"Helm installed {workload.name}: the next upgrade reverts the flags unless its values have them"
        )
    return notes


def choose_pod_strategy(wanted: Strategy | Literal["auto"], pods: int, no_node: str) -> StrategyChoice:
    """`pods`: that serve now. `no_node`: why one more finds no node; empty: it is not known that it does not.

    An outage is never chosen for an operator who has not written "swap".
    """
    room = "one pod more than now runs during the change, if a node takes it"
    if wanted == "surge" or (wanted == "auto" and not no_node):
        return StrategyChoice(strategy="surge", why=room)
    choice = choose_strategy(
        wanted, pods, HostCapacity(free=False if no_node else None, why=no_node or "not known")
    )
    if wanted == "auto" and choice.strategy == "swap":
        how = 'add a node, or write strategy = "swap" in [targets.engine]: a planned outage'
        return StrategyChoice(strategy=None, why=f"there is no node for a second pod: {no_node}; {how}")
    return choice


async def find_waiting_pod(reader: Reader, workload: Workload) -> str:
    """Return what the scheduler says of a pod of the namespace that waits for the GPUs, or for a node."""
    for document in await reader.find(kubernetes.POD):
        pod = Pod.parse(document, "")
        gpus = sum(count_gpus(container) for container in document["spec"]["containers"])
        if pod.active and pod.unschedulable and (gpus or not workload.gpus):
            return f"the pod {pod.name} waits for a node: {pod.unschedulable}"
    return ""
