"""A Deployment or StatefulSet as the engine knows it: its container that runs vLLM, and that one's flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from flettner.actuators.kubernetes.labels import (
    LIKE,
    REPLICAS,
    SERVER,
    SITE,
    UPGRADED,
    epoch_of,
    server_of,
)
from flettner.actuators.vllm.serve_command import ChangedCommand, ContainerCommand, ReadFile
from flettner.agent.domain.upgrade import IMAGE
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.documents import Json, Kind
from flettner.redaction import secret_name
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import is_vllm_server
from flettner.vllm_facts.shell_command.docker_run import read_gib
from flettner.vllm_facts.values import ENV, Knob, Setting, Value

_ENTRYPOINT = ("vllm", "serve")
"""Of vllm/vllm-openai and images made from it (docs.vllm.ai deployment/docker); manifests with `args` alone
rely on it. Before 0.11 it was `python3 -m vllm.entrypoints.openai.api_server`, with the same flags."""

OPTIONS: Mapping[Kind, str] = {kubernetes.DEPLOYMENT: "deployments", kubernetes.STATEFUL_SET: "statefulsets"}
"""The kinds that may run vLLM, each with the option that names those to adopt, as kubectl calls them."""

_KINDS = {kind.__name__: kind for kind in OPTIONS}
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_OWNERS = {  # label or annotation: what writes the manifest
    "argocd.argoproj.io/instance": "Argo CD",
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
}


@dataclass(frozen=True, slots=True)
class WorkloadName:
    """The name of a workload in the config: a Deployment or a StatefulSet."""

    resource: Kind
    name: str

    def __str__(self) -> str:
        return f"the {self.resource.__name__} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment or StatefulSet. `problem`: why its command cannot be read; then `serve` is empty."""

    full_name: WorkloadName
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    version: str  # metadata.resourceVersion
    replicas: int  # wanted
    selector: Mapping[str, str]  # the labels that its pods have and no others
    container: int  # the index of the vLLM container
    serve: ContainerCommand  # with `$(NAME)` of the container's own variables replaced
    written: ContainerCommand  # as the manifest has it
    problem: str = ""
    document: Json = field(repr=False, compare=False)
    read_file: ReadFile = field(repr=False, compare=False)  # of the files that ConfigMaps mount

    @classmethod
    def parse(cls, document: Json, read_file: ReadFile = lambda _: None) -> Self:
        """`read_file`: the text of a file that a ConfigMap mounts into the container."""
        metadata, spec = document["metadata"], document["spec"]
        containers = spec["template"]["spec"]["containers"]
        index, problem = _find_container(containers)
        serve = _serve_command(containers[index], read_file, expand=True)
        return cls(
            full_name=WorkloadName(_KINDS[document["kind"]], metadata["name"]),
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
            version=metadata.get("resourceVersion", ""),
            replicas=spec.get("replicas", 1),
            selector=_selector(spec),
            container=index,
            serve=serve,
            written=_serve_command(containers[index], read_file, expand=False),
            problem=_find_group(document) or problem or serve.error,
            document=document,
            read_file=read_file,
        )

    @property
    def name(self) -> str:
        return self.full_name.name

    @property
    def resource(self) -> Kind:
        return self.full_name.resource

    @property
    def template(self) -> Json:
        template: Json = self.document["spec"]["template"]
        return template

    @property
    def container_document(self) -> Json:
        document: Json = self.template["spec"]["containers"][self.container]
        return document

    @property
    def names_vllm(self) -> bool:
        """Whether its command has the word, also where flettner cannot read it."""
        return "vllm" in " ".join(_words(self.container_document))

    @property
    def older_pods(self) -> int:
        """How many pods a rolling update has not replaced yet."""
        status = self.document.get("status") or {}
        return max(0, int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0)))

    @property
    def selects_by_expressions(self) -> bool:
        return bool(self.document["spec"]["selector"].get("matchExpressions"))

    @property
    def paused(self) -> bool:
        """Whether its controller leaves pods with the old template."""
        return bool(self.document["spec"].get("paused"))

    @property
    def usual_replicas(self) -> int:
        """How many pods it has outside a rollout; 1 if a third party scaled it to 0."""
        return max(self.replicas, self.remembered_replicas) or 1

    @property
    def remembered_replicas(self) -> int:
        """How many pods it had when flettner took some, or all, away; 0: flettner did not."""
        return int(self.annotations.get(REPLICAS, "0"))

    @property
    def ours(self) -> bool:
        """Whether flettner created it."""
        return SITE in self.labels and SERVER in self.labels

    @property
    def server(self) -> str:
        """The server that flettner created it for; empty: people own it."""
        return server_of(self.document["metadata"]) if self.ours else ""

    @property
    def like(self) -> str:
        return self.annotations.get(LIKE, "")

    @property
    def epoch(self) -> int:
        return epoch_of(dict(self.labels))

    @property
    def controller(self) -> str:
        """The object whose controller made this workload, such as "InferenceService chat"; empty for none."""
        return _find_controller(self.document)

    @property
    def owner(self) -> str:
        """The controller or GitOps tool that writes this object and would revert a change; empty for none."""
        if self.controller:
            return self.controller
        owners = [who for key, who in _OWNERS.items() if key in self.labels or key in self.annotations]
        fields = self.document["metadata"].get("managedFields") or ()
        managers = [field.get("manager", "") for field in fields]
        owners += ["Argo CD" for manager in managers if manager.startswith("argocd")]
        owners += ["Flux" for manager in managers if manager in {"kustomize-controller", "helm-controller"}]
        return owners[0] if owners else ""

    @property
    def image(self) -> str:
        return str(self.container_document.get("image", ""))

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the container that the manifest gives a value, by name."""
        given = self.container_document.get("env") or ()
        return {
            variable["name"]: str(variable.get("value", ""))
            for variable in given
            if "valueFrom" not in variable
        }

    @property
    def references(self) -> Mapping[str, Json]:
        """Where variables of the container have their values from, by name: a Secret, a field of the pod."""
        given = self.container_document.get("env") or ()
        return {variable["name"]: variable["valueFrom"] for variable in given if "valueFrom" in variable}

    @property
    def start(self) -> Setting:
        """The image and the variables that upgrades have set, as they are now.

        Where a third party writes the manifest, no upgrade has left its names: the image and the variables
        of vLLM show whether the change was made there.
        """
        variables, names = self.variables, list[Knob](self.annotations.get(UPGRADED, "").split())
        names = [name for name in names if name.removeprefix(ENV) not in self.references]
        if self.owner:
            of_vllm = (name for name in variables if name.startswith("VLLM_") and not secret_name(name))
            names += [IMAGE, *(f"{ENV}{name}" for name in of_vllm)]
        return {
            name: self.image if name == IMAGE else variables.get(name.removeprefix(ENV)) for name in names
        }

    @property
    def memory_limit(self) -> int | None:
        """Bytes that its container may take; None: no limit, or one that is not understood."""
        limits = (self.container_document.get("resources") or {}).get("limits") or {}
        gib = read_gib(str(limits.get("memory", "")))
        return None if gib is None else int(gib * 2**30)

    @property
    def gpus(self) -> int:
        """GPUs of one pod."""
        return count_gpus(self.container_document)

    def document_with(self, pod: Json) -> Json:
        """Return the document with the spec of a pod in its template."""
        spec = self.document["spec"]
        return {**self.document, "spec": {**spec, "template": {**spec["template"], "spec": pod}}}

    def with_container(self, container: Json) -> Self:
        """Return the workload with another vLLM container in its template."""
        containers = list(self.template["spec"]["containers"])
        containers[self.container] = container
        pod = {**self.template["spec"], "containers": containers}
        return self.parse(self.document_with(pod), self.read_file)

    def with_setting(self, setting: Mapping[str, Value]) -> Json:
        """Return `command` and `args` of the vLLM container with this full setting. Raises FlagError.

        A key that the manifest lacks stays absent, so that the image's own entrypoint runs. A flag whose
        value does not change stays as it is written there, `$(NAME)` too.
        """
        as_written = {
            knob: self.written.setting.get(knob, value) if self.serve.setting.get(knob) == value else value
            for knob, value in setting.items()
        }
        changed = self.written.with_setting(as_written)
        given = self.container_document
        if given.get("command"):
            return {"command": changed.entrypoint, "args": changed.command, **_env(given, changed)}
        if tuple(changed.entrypoint) != _ENTRYPOINT:
            raise FlagError("the manifest has no `command`, and the change would need one: write it there")
        return {"args": changed.command, **_env(given, changed)}


def _find_controller(document: Json) -> str:
    owners = document["metadata"].get("ownerReferences") or ()
    return next((f"{owner['kind']} {owner['name']}" for owner in owners if owner.get("controller")), "")


def _find_group(document: Json) -> str:
    """Return why the leaders of a LeaderWorkerSet, a StatefulSet with its name, cannot change alone."""
    group = _find_controller(document)
    if not group.startswith("LeaderWorkerSet "):
        return ""
    return (
        f"it belongs to the {group}, where several pods are one engine: flettner changes Deployments and "
        "StatefulSets alone; take it out of the config and change its flags by hand, with "
        "`flettner advise URL` for its servers and `flettner lint` for its manifest"
    )


def count_gpus(container: Json) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return sum(int(limits.get(kind, 0)) for kind in _GPUS if str(limits.get(kind, 0)).isdecimal())


def is_complete(document: Json) -> bool:
    """Whether all pods of a workload are of its newest template and ready, and no other is left."""
    status, wanted = document.get("status") or {}, document["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= document["metadata"].get("generation", 0)
    counts = {status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")}
    return seen and counts == {wanted}


def _selector(spec: Json) -> dict[str, str]:
    """Return the labels to select the pods by. A Service cannot use expressions: all labels of the template
    fulfil them."""
    if spec["selector"].get("matchExpressions"):
        return dict((spec["template"].get("metadata") or {}).get("labels") or {})
    return dict(spec["selector"].get("matchLabels") or {})


def _find_container(containers: Sequence[Json]) -> tuple[int, str]:
    """Return the index of the container that runs vLLM, and why it is not certain; empty: it is."""
    indices = [index for index, container in enumerate(containers) if is_vllm_server(_words(container))]
    indices = indices or [
        index for index, container in enumerate(containers) if "vllm" in " ".join(_words(container))
    ]
    if len(indices) == 1:
        return indices[0], ""
    names = ", ".join(str(container["name"]) for container in containers)
    count = "none" if not indices else f"{len(indices)}"
    return (indices or [0])[0], f"{count} of its containers ({names}) run `vllm serve`; one is needed"


def _words(container: Json) -> list[str]:
    command, args = container.get("command"), container.get("args") or []
    if not command and "vllm" in str(container.get("image", "")).lower():
        command = list(_ENTRYPOINT)
    return [str(word) for word in (*(command or ()), *args)]


def _serve_command(container: Json, read_file: ReadFile, *, expand: bool) -> ContainerCommand:
    given = [variable for variable in container.get("env") or () if "value" in variable]
    env = [f"{variable['name']}={variable['value']}" for variable in given]
    variables = dict(line.partition("=")[::2] for line in env) if expand else {}
    command = _expand(container.get("command") or _ENTRYPOINT, variables)
    folder = str(container.get("workingDir") or "")
    return ContainerCommand.parse(
        command, _expand(container.get("args") or (), variables), env, folder, read_file
    )


def _expand(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Replace `$(NAME)` as the kubelet does. A name that is not known here stays."""
    words = [str(word) for word in words]
    for name, value in env.items():
        words = [word.replace(f"$({name})", value) for word in words]
    return words


def _env(container: Json, changed: ChangedCommand) -> dict[str, Any]:
    """`env` with the changed values, for images that read flags there; absent if nothing changed."""
    wanted = dict(line.partition("=")[::2] for line in changed.env)
    given = container.get("env") or []
    before = {
        variable["name"]: variable["value"] for variable in given if "value" in variable
    }  # of equal names the last counts
    if wanted == before:
        return {}
    used = [variable for variable in given if "value" not in variable or variable["name"] in wanted]
    fresh = [
        {**variable, "value": wanted[variable["name"]]} if "value" in variable else variable
        for variable in used
    ]
    fresh += [{"name": name, "value": value} for name, value in wanted.items() if name not in before]
    return {"env": fresh}
