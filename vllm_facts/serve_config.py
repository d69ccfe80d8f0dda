"""The flags, environment, GPU and model of a vLLM server, and findings about them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from flettner.vllm_facts.start_facts import StartFacts, read_start
from flettner.vllm_facts.values import ChangeClass, Knob, Setting, Value

FindingSeverity = Literal["info", "warning", "error"]
"""`error`: does not start, or answers wrongly. `warning`: costs performance. `info`: a remark."""

GpuLink = Literal["nvlink", "pcie"]

Launcher = Literal["docker run", "compose", "Kubernetes"]

PROFILES = ("api", "batch", "chat", "rag", "wide-ep")
"""Kinds of traffic that a person may name."""

Fact = Literal[
    "gpu", "gpus", "model", "version", "flags", "profile", "log", "gpu_memory", "model_size", "step_memory"
]
"""What is known of a server besides its flags and variables."""


@dataclass(frozen=True, slots=True)
class EntryFault:
    """Why a container or a script starts something else than its words say.

    `of`: the items of a container's command, a line of a script by its syntax or where it cuts the command,
    a variable that the server does not get, a script by what it does, the second name of the model, or what a
    controller leaves out.
    """

    why: str
    of: Literal["items", "line", "cut", "variable", "script", "name", "controller"] = "items"
    also: "tuple[EntryFault, ...]" = ()  # further ones

    def together(self, *others: "EntryFault | None") -> "EntryFault":
        """The fault with others after it."""
        more = (each for other in others if other is not None for each in (other, *other.also))
        return replace(self, also=(*self.also, *(replace(each, also=()) for each in more)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One kind of GPU. None means unknown."""

    name: str
    capability: tuple[int, int] | None = None  # CUDA compute capability: (8, 0)
    memory_gib: float | None = None
    link: GpuLink | None = None  # between the GPUs of one host
    sizes: tuple["GpuModel", ...] = ()  # where the name leaves its memory open: the GPUs that it may be
    listed: bool = True  # False: a name that the table does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The numbers in a model's `config.json`. None means unknown."""

    name: str
    parameters: float | None = None  # in all: 7.6e9
    active_parameters: float | None = None  # used for one token; a dense model: all
    layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    experts: int | None = None  # routed experts of a layer; None or 0: dense
    active_experts: int | None = None  # of them for one token
    mla: bool = False  # multi-head latent attention: one small latent per token instead of heads
    latent_dim: int | None = None  # MLA: kv_lora_rank + qk_rope_head_dim
    hybrid: bool = False  # has Mamba, linear-attention or other state-space layers
    attention_layers: int | None = None  # hybrid: layers that have a KV cache; None: all
    state_bytes: float | None = None  # hybrid: of one recurrent layer, for one sequence
    max_len: int | None = None  # max_position_embeddings
    weight_bytes: float | None = None  # of one parameter as stored: 2 for bf16, about 0.5 for 4 bit
    quantization: str = ""
    architecture: str = ""  # "LlamaForCausalLM"
    model_type: str = ""  # "llama"; of a multimodal model the outer one, as vLLM checks it: "gemma3"
    vocab: int | None = None
    vocabulary_parameters: float | None = None  # of the embedding, and as many of an output of its own
    tied: bool = False  # embedding and output are one matrix
    intermediate: int | None = None  # width of a dense MLP
    moe_intermediate: int | None = None  # width of one routed expert
    shared_intermediate: int | None = None  # width of all shared experts of a layer
    weight_block: tuple[int, int] | None = None  # block-quantized FP8: weight_block_size, (128, 128)
    dtype: str = ""  # of the checkpoint: "bfloat16"
    source: str = ""  # of the numbers, if they are not from a config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another server on a GPU of this one, and its gpu_memory_utilization there."""

    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCard:
    """The servers that run together on one GPU. `own`: the share of this one, by its file."""

    own: float
    others: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What a file grants the container of a server. None: no bound, or not said."""

    cpus: float | None = None  # at most
    cpus_kept: float | None = None  # kept free of others; more if the host has it
    start_s: float | None = None  # then a probe restarts a container that does not answer yet
    startup_probe: bool = False  # which that time is of; else it is of the liveness probe
    answer_s: float | None = None  # in which a liveness or readiness probe wants its answer, the shortest
    deaf_s: float | None = None  # without an answer in time, after which that probe acts
    restarts: bool = False  # that probe is the liveness probe, which ends the container


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume in a container. `lasting`: the next container finds what this one writes there."""

    path: str
    lasting: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """Where a probe, or a health check of compose, asks whether the server is there."""

    name: str  # as its file calls it
    port: int
    inside: bool = False  # it asks the container's own loopback, else the address of its network


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a file says of a server's container, besides its command and what it grants. None: not known."""

    launcher: Launcher
    image: str = ""
    mounts: tuple[Mount, ...] | None = None
    overlays: tuple[str, ...] = ()  # mounted paths that hide files of vLLM's package
    checks: tuple[HealthCheck, ...] = ()
    memory_gib: float | None = None  # at most
    shared_memory_gib: float | None = None  # of /dev/shm
    asks_gpus: bool = False  # of the scheduler
    gpu_fault: str = ""  # why it gets no GPU of its own although the file asks for one
    runtime: str | None = None  # runtimeClassName of the pod; "": that of the node
    surges: bool = False  # an update starts the new server beside the old one
    crowded: str = ""  # why there is hardly a place for it
    asked_ports: tuple[int, ...] = ()  # to which the file leads requests
    asked_by: str = ""  # what leads them there
    partly_read: bool = False  # flags of its command are unknown
    port_variable: bool = False  # Kubernetes sets VLLM_PORT, for a Service of the name vllm


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """One `vllm serve` command and the host that runs it."""

    setting: Setting
    env: Mapping[str, str] = field(default_factory=dict)
    card: GpuModel | None = None
    gpus: int | None = None  # on the host
    model: Model | None = None
    estimate: Model | None = None  # size and format by the name of an unknown model: for remarks, no changes
    version: str = ""  # "0.32.0"; empty: not known
    on_cpus: bool = False  # the server itself reports so; False: not known
    profile: str = ""  # one of PROFILES; empty: not said
    log: tuple[str, ...] = ()  # of its start
    start: StartFacts | None = None  # of the log; they stay true when flags change and the log is left out
    shared_card: SharedCard | None = None  # the fullest of its GPUs; None: nobody else is known to be there
    concurrency: float | None = None  # concurrent requests, measured or given
    little_shared_memory: Launcher | None = None  # that leaves the container with 64 MB of /dev/shm
    port: int | None = None  # of its API; None: not known
    granted: Granted | None = None  # by the file
    container: Container | None = None  # by the file
    hosts: int | None = None  # that serve one model together, by the file; None: not known
    ray: bool = False  # Ray is started beside the server
    in_process: bool = False  # `LLM(…)` of a program, or a replica of Ray Serve
    entry_fault: EntryFault | None = None
    shared_memory_gib: float | None = None  # of /dev/shm, by the words of `docker run`
    locks_memory: bool = False  # the container may pin memory without a limit; False: not known
    bypassed_image: str = ""  # whose own entrypoint another command replaces

    def __post_init__(self) -> None:
        if self.log and self.start is None:
            object.__setattr__(self, "start", read_start(self.log, self.setting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem or opportunity. `to` is empty if no flag helps."""

    rule: str  # "D6", a rule of docs/reference/rules.md
    klass: ChangeClass = "note"
    severity: FindingSeverity = "info"
    why: str  # one sentence with the numbers in it
    source: str = ""  # what shows it; see vllm_facts/references.py
    to: Mapping[Knob, Value] = field(default_factory=dict)  # None: remove the flag
    env: Mapping[str, str | None] = field(default_factory=dict)  # environment variables; None: unset
    expects: str = ""
    risks: str = ""
    evidence: Mapping[str, Value] = field(default_factory=dict)

    @property
    def changes_by_name(self) -> dict[str, Value]:
        """The new values of knobs, and of variables by their names."""
        return {**self.to, **self.env}

    @property
    def changes(self) -> dict[str, Value]:
        """The new values of knobs, and of variables as `env:NAME`."""
        return {**self.to, **{f"env:{name}": value for name, value in self.env.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The facts that a rule needs.

    The rule is judged only with all `facts`. `for_change`: without one of them its change is not
    proposed. `applies`: False if flags and variables leave nothing to judge, whatever the facts are.
    """

    facts: tuple[Fact, ...] = ()
    for_change: tuple[Fact, ...] = ()
    applies: Callable[[ServeConfig], bool] = lambda _: True


NO_NEEDS = Needs()


class LintRule(Protocol):
    """A pure check of a command line and its host. `LINTS` of each module in lint/rules lists some."""

    @property
    def rules(self) -> tuple[str, ...]:
        """The ids of the rules that it may report."""
        ...

    @property
    def needs(self) -> Needs: ...

    def check(self, config: ServeConfig) -> Iterable[Finding]: ...
