"""The flags of a deployment with vLLM's defaults and interpretation applied."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.knobs import find_default_number, release_of
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.serve_config import NO_NEEDS, Finding, FindingSeverity, Model, Needs, ServeConfig
from flettner.vllm_facts.values import Knob, Value

V1_BY_DEFAULT = (0, 8)
SPARSE_ENOUGH = 0.01
"""Share of active experts up to which expert parallelism costs more than it saves: it lost at 0.78 %
(Llama-4-Maverick, references.AMD_MOE), and vLLM's recipes use it at 1.95 % (Qwen3.5-397B-A17B)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentCheck:
    """A check of `flettner lint`, with what docs/reference/rules.md says about it.

    `source` is that of the findings that name none of their own; vllm_facts/references.py describes its form.
    `evidence_for` and `evidence_against` are measurements of what the change gains or loses.
    """

    rules: tuple[str, ...]
    find: Callable[[ServeConfig], Iterable[Finding]]
    reports: str
    source: str
    evidence_for: str = ""
    evidence_against: str = ""
    needs: Needs = NO_NEEDS

    def parts(self) -> tuple["DeploymentCheck", ...]:
        """The checks that docs/reference/rules.md lists; a table has several."""
        return (self,)

    def check(self, config: ServeConfig) -> Iterable[Finding]:
        against = f"; against it: {self.evidence_against}" if self.evidence_against else ""
        for finding in self.find(config):
            yield replace(finding, source=cite(finding.source or self.source + against))


def has_any(*names: str) -> Callable[[ServeConfig], bool]:
    """Whether one of these flags or variables is given."""
    return lambda config: any(config.setting.get(name) is not None or name in config.env for name in names)


def is_split(config: ServeConfig) -> bool:
    """Whether the flags spread the model over several GPUs."""
    return layout(config).gpus > 1


def chooses_cpus(env: Mapping[str, str]) -> bool:
    """Whether the variables of a process are of a server on CPUs; `nobind` has each that flettner starts."""
    return any(
        name.startswith("VLLM_CPU_") and (name, value) != ("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        for name, value in env.items()
    )


_OF_CPUS = re.compile(r"vllm[\w.-]{0,60}[-_]cpu\b")  # an image: vllm-cpu-release-repo, my-vllm-openai-cpu


def runs_on_cpus(config: ServeConfig) -> bool:
    """Whether its build, its log, its variables or a flag of earlier releases show a server without GPUs."""
    if config.on_cpus or "cpu" in config.version.partition("+")[2].split("."):
        return True  # vLLM's setup.py: get_vllm_version marks its builds, 0.32.0+cpu
    if config.container is not None and _OF_CPUS.search(config.container.image):
        return True
    seen = config.start is not None and config.start.on_cpus
    chosen = any(name.startswith("VLLM_CPU_") for name in config.env)
    return config.card is None and (seen or chosen or config.setting.get("device") == "cpu")


def invalid_flags_finding(
    why: str,
    to: Mapping[Knob, Value],
    *,
    source: str = "",
    severity: FindingSeverity = "error",
    expects: str = "",
) -> Finding:
    """A finding of rule V1: flags that vLLM refuses or misinterprets, with the fix."""
    return Finding(
        rule="V1",
        klass="gated",
        severity=severity,
        why=why,
        source=source,
        to=to,
        expects=expects or "vLLM takes the command line",
        risks="none known",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The division of the GPUs: each of `dp` engines has `pp` stages of `tp` GPUs."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp


def layout(config: ServeConfig) -> Layout:
    """The layout in the flags; each size is 1 by default."""
    sizes = (
        positive_int(config.setting, f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline", "data")
    )
    tp, pp, dp = sizes
    return Layout(tp=tp, pp=pp, dp=dp)


def engine_count(config: ServeConfig) -> int:
    """How many engines answer at the server's address; those of an external launcher have their own."""
    setting = config.setting
    if setting.get("data_parallel_rank") is not None or setting.get("data_parallel_external_lb") is True:
        return 1
    if setting.get("data_parallel_hybrid_lb") is True:
        return positive_int(setting, "data_parallel_size_local") or layout(config).dp
    return layout(config).dp


def release_number(config: ServeConfig) -> tuple[int, int] | None:
    """(0, 32) of "0.32.0"; None if unknown."""
    return release_of(config.version)


def patch_number(config: ServeConfig) -> tuple[int, int, int] | None:
    """(0, 19, 1) of "v0.19.1rc2"; None if unknown."""
    release = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", config.version)
    return (int(release[1]), int(release[2]), int(release[3])) if release else None


def is_older_than(config: ServeConfig, bound: tuple[int, int]) -> bool:
    """Whether the version is known and older than `bound`."""
    release = release_number(config)
    return release is not None and release < bound


def is_v0_by_default(config: ServeConfig) -> bool:
    """Whether the version is known and older than V1's by default, and nothing asks for V1."""
    return is_older_than(config, V1_BY_DEFAULT) and config.env.get("VLLM_USE_V1") != "1"


def is_at_least(config: ServeConfig, bound: tuple[int, int]) -> bool:
    """Whether the version is known and not older than `bound`."""
    release = release_number(config)
    return release is not None and release >= bound


def number_of(config: ServeConfig, knob: Knob) -> float | None:
    """The knob's value if it is a number, else None."""
    value = config.setting.get(knob)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text_of(config: ServeConfig, knob: Knob) -> str:
    """The knob's value if it is text, else ""."""
    value = config.setting.get(knob)
    return value if isinstance(value, str) else ""


def json_entry(config: ServeConfig, knob: Knob, key: str) -> Value:
    """One entry of a flag that takes JSON, given dotted (`-cc.mode=3`) or inside the JSON."""
    dotted = config.setting.get(f"{knob}.{key}")
    if dotted is not None:
        return dotted
    value = json_entries(config, knob).get(key)
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


def json_entries(config: ServeConfig, knob: Knob) -> dict[str, object]:
    """The JSON object of a flag; empty if the flag is absent or no JSON object."""
    try:
        entries = json.loads(text_of(config, knob) or "{}")
    except ValueError:
        return {}
    return entries if isinstance(entries, dict) else {}


def remove_json_entry(config: ServeConfig, knob: Knob, key: str) -> Mapping[Knob, Value]:
    """The change that removes one entry from a JSON flag, dotted or inside the JSON."""
    left = {name: value for name, value in json_entries(config, knob).items() if name != key}
    if left != json_entries(config, knob):
        return {knob: json.dumps(left, separators=(",", ":")) if left else None}
    return {f"{knob}.{key}": None}


def memory_share(config: ServeConfig) -> float:
    """gpu_memory_utilization in force: given, or vLLM's default of that version."""
    given = number_of(config, "gpu_memory_utilization")
    if given is not None:
        return given
    return cast("float", find_default_number("gpu_memory_utilization", config.version))


def is_omni(config: ServeConfig) -> bool:
    """Whether vLLM-Omni serves: another program behind `vllm serve`, with flags and stages of its own."""
    return config.setting.get("omni") is not None


_POOLING_NAME = re.compile(r"embed|rerank|\breward\b|/(bge|gte|e5|jina-cl)-")


def is_pooling(config: ServeConfig) -> bool:
    """Whether the server embeds, scores or classifies rather than generates."""
    runner = text_of(config, "runner") or text_of(config, "task")
    if runner not in {"", "auto"}:
        return runner in {"pooling", "embed", "embedding", "classify", "score", "reward"}
    return _POOLING_NAME.search(text_of(config, "model").lower()) is not None


def has_kv_transfer(config: ServeConfig) -> bool:
    """Whether KV cache is transferred to other servers or offloaded from the GPU."""
    knobs = ("kv_transfer_config", "kv_offloading_size")
    return any(config.setting.get(knob) for knob in knobs) or any(
        knob.startswith("kv_transfer_config.") for knob in config.setting
    )


def speculation_method(config: ServeConfig) -> str:
    """The method of speculative decoding in lower case; "" if no method is given."""
    method = config.setting.get("spec_method") or json_entry(config, "speculative_config", "method")
    return str(method).lower() if method else ""


def draft_tokens(config: ServeConfig) -> int:
    """The tokens that speculation adds to each sequence of a step; 0 without speculation, or if unknown."""
    given = config.setting.get("spec_tokens")
    if given is None:
        given = json_entry(config, "speculative_config", "num_speculative_tokens")
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else 0


def is_expert_parallel(config: ServeConfig) -> bool:
    return config.setting.get("enable_expert_parallel") is True


def is_sparse(config: ServeConfig) -> bool:
    """Whether the model is known to be a mixture of experts."""
    return bool(config.model and config.model.experts and config.model.experts > 1)


def is_too_sparse(config: ServeConfig) -> bool:
    """D6: whether so few experts are active that expert parallelism costs more than it saves."""
    counts = config.model and config.model.experts and config.model.active_experts
    return bool(counts and config.model and active_share(config.model) <= SPARSE_ENOUGH)


def active_share(model: Model) -> float:
    """The share of a layer's routed experts that is active for one token; 1 for a dense model."""
    return (model.active_experts or 0) / model.experts if model.experts else 1.0


def is_transformer(config: ServeConfig) -> bool:
    """Whether the model is known and has no state-space layers."""
    return config.model is not None and not config.model.hybrid


def format_billions(parameters: float) -> str:
    return f"{parameters / 1e9:.1f}B"


def effective_batched_tokens(config: ServeConfig) -> int | None:
    """max_num_batched_tokens as given, or vLLM's default on the GPU; None if unknown."""
    return positive_int(config.setting, "max_num_batched_tokens") or _default_of(
        config, "max_num_batched_tokens"
    )


def effective_seqs(config: ServeConfig) -> int | None:
    """max_num_seqs as given, or vLLM's default on the GPU; None if unknown."""
    given, default = positive_int(config.setting, "max_num_seqs"), _default_of(config, "max_num_seqs")
    if given is not None or default is None:
        return given
    return min(default, effective_batched_tokens(config) or default)


def _default_of(config: ServeConfig, knob: Knob) -> int | None:
    """The default of vLLM on the GPU of the deployment; None if that is unknown."""
    if config.card is None or config.card.memory_gib is None:
        return None
    default = find_default_number(
        knob, config.version, memory_gib=config.card.memory_gib, card=config.card.name
    )
    return None if default is None else int(default)
