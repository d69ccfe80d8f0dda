"""Which strategy a change takes: the room for one more pod, and what serves meanwhile.

The free GPUs of the nodes cannot be read with rights in one namespace. What is known: a pod that waits for a
node, and the last start that found none.
"""

from typing import Literal

from flettner.actuators.kubernetes.pods import Pod
from flettner.actuators.kubernetes.workload import Workload, count_gpus
from flettner.agent.domain.model import Strategy
from flettner.agent.machine.strategy import HostCapacity, StrategyChoice
from flettner.agent.machine.strategy import choose_strategy as choose
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import Reader


def choose_strategy(wanted: Strategy | Literal["auto"], pods: int, no_node: str) -> StrategyChoice:
    """`pods`: that serve now. `no_node`: why one more finds no node; empty: it is not known that it does not.

    An outage is never chosen for an operator who has not written "swap".
    """
    room = "one pod more than now runs during the change, if a node takes it"
    if wanted == "surge" or (wanted == "auto" and not no_node):
        return StrategyChoice(strategy="surge", why=room)
    choice = choose(wanted, pods, HostCapacity(free=False if no_node else None, why=no_node or "not known"))
    if wanted == "auto" and choice.strategy == "swap":
        how = 'add a node, or write strategy = "swap" in [targets.engine]: a planned outage'
        return StrategyChoice(strategy=None, why=f"there is no node for a second pod: {no_node}; {how}")
    return choice


async def find_waiting_pod(reader: Reader, workload: Workload) -> str:
    """Return what the scheduler says of a pod of the namespace that waits for the GPUs, or for a node."""
    for document in await reader.find(kubernetes.POD):
        pod = Pod.parse(document, "")
        gpus = sum(count_gpus(one) for one in document["spec"]["containers"])
        if pod.active and pod.unschedulable and (gpus or not workload.gpus):
            return f"the pod {pod.name} waits for a node: {pod.unschedulable}"
    return ""
