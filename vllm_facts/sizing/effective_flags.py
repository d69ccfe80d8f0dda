"""The flags of a deployment with vLLM's defaults and interpretation applied."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.deployment import NO_NEEDS, Deployment, Finding, FindingSeverity, Model, Needs
from flettner.vllm_facts.knobs import find_default_number, release_of
from flettner.vllm_facts.values import Knob, Value

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
    find: Callable[[Deployment], Iterable[Finding]]
    reports: str
    source: str
    evidence_for: str = ""
    evidence_against: str = ""
    needs: Needs = NO_NEEDS

    def check(self, case: Deployment) -> Iterable[Finding]:
        against = f"; against it: {self.evidence_against}" if self.evidence_against else ""
        for finding in self.find(case):
            yield finding if finding.source else replace(finding, source=self.source + against)


def has_any(*names: str) -> Callable[[Deployment], bool]:
    """Whether one of these flags or variables is given."""
    return lambda case: any(case.setting.get(name) is not None or name in case.env for name in names)


def is_split(case: Deployment) -> bool:
    """Whether the flags spread the model over several GPUs."""
    return layout(case).gpus > 1


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


def layout(case: Deployment) -> Layout:
    """The layout in the flags; each size is 1 by default."""
    sizes = (
        positive_int(case.setting, f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline", "data")
    )
    tp, pp, dp = sizes
    return Layout(tp=tp, pp=pp, dp=dp)


def release_number(case: Deployment) -> tuple[int, int] | None:
    """(0, 32) of "0.32.0"; None if unknown."""
    return release_of(case.version)


def patch_number(case: Deployment) -> tuple[int, int, int] | None:
    """(0, 19, 1) of "v0.19.1rc2"; None if unknown."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", case.version)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def is_older_than(case: Deployment, bound: tuple[int, int]) -> bool:
    """Whether the version is known and older than `bound`."""
    known = release_number(case)
    return known is not None and known < bound


def is_at_least(case: Deployment, bound: tuple[int, int]) -> bool:
    """Whether the version is known and not older than `bound`."""
    known = release_number(case)
    return known is not None and known >= bound


def number_of(case: Deployment, knob: Knob) -> float | None:
    """The knob's value if it is a number, else None."""
    value = case.setting.get(knob)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text_of(case: Deployment, knob: Knob) -> str:
    """The knob's value if it is text, else ""."""
    value = case.setting.get(knob)
    return value if isinstance(value, str) else ""


def json_entry(case: Deployment, knob: Knob, key: str) -> Value:
    """One entry of a flag that takes JSON, given dotted (`-cc.mode=3`) or inside the JSON."""
    dotted = case.setting.get(f"{knob}.{key}")
    if dotted is not None:
        return dotted
    value = json_entries(case, knob).get(key)
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


def json_entries(case: Deployment, knob: Knob) -> dict[str, object]:
    """The JSON object of a flag; empty if the flag is absent or no JSON object."""
    try:
        found = json.loads(text_of(case, knob) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def remove_json_entry(case: Deployment, knob: Knob, key: str) -> Mapping[Knob, Value]:
    """The change that removes one entry from a JSON flag, dotted or inside the JSON."""
    left = {name: value for name, value in json_entries(case, knob).items() if name != key}
    if left != json_entries(case, knob):
        return {knob: json.dumps(left, separators=(",", ":")) if left else None}
    return {f"{knob}.{key}": None}


def memory_share(case: Deployment) -> float:
    """gpu_memory_utilization in force: given, or vLLM's default of that version."""
    given = number_of(case, "gpu_memory_utilization")
    if given is not None:
        return given
    return cast("float", find_default_number("gpu_memory_utilization", case.version))


def is_omni(case: Deployment) -> bool:
    """Whether vLLM-Omni serves: another program behind `vllm serve`, with flags and stages of its own."""
    return case.setting.get("omni") is not None


_POOLING_NAME = re.compile(r"embed|rerank|\breward\b|/(bge|gte|e5|jina-cl)-")


def is_pooling(case: Deployment) -> bool:
    """Whether the server embeds, scores or classifies rather than generates."""
    runner = text_of(case, "runner") or text_of(case, "task")
    if runner not in {"", "auto"}:
        return runner in {"pooling", "embed", "embedding", "classify", "score", "reward"}
    return _POOLING_NAME.search(text_of(case, "model").lower()) is not None


def has_kv_transfer(case: Deployment) -> bool:
    """Whether KV cache is transferred to other servers or offloaded from the GPU."""
    knobs = ("kv_transfer_config", "kv_offloading_size")
    return any(case.setting.get(knob) for knob in knobs) or any(
        knob.startswith("kv_transfer_config.") for knob in case.setting
    )


def speculation_method(case: Deployment) -> str:
    """The method of speculative decoding in lower case; "" if there is none or it is not given."""
    method = case.setting.get("spec_method") or json_entry(case, "speculative_config", "method")
    return str(method).lower() if method else ""


def is_expert_parallel(case: Deployment) -> bool:
    return case.setting.get("enable_expert_parallel") is True


def is_sparse(case: Deployment) -> bool:
    """Whether the model is known to be a mixture of experts."""
    return bool(case.model and case.model.experts and case.model.experts > 1)


def is_too_sparse(case: Deployment) -> bool:
    """D6: whether so few experts are active that expert parallelism costs more than it saves."""
    known = case.model and case.model.experts and case.model.active_experts
    return bool(known and case.model and active_share(case.model) <= SPARSE_ENOUGH)


def active_share(model: Model) -> float:
    """The share of a layer's routed experts that is active for one token; 1 for a dense model."""
    return (model.active_experts or 0) / model.experts if model.experts else 1.0


def is_transformer(case: Deployment) -> bool:
    """Whether the model is known and has no state-space layers."""
    return case.model is not None and not case.model.hybrid


def format_billions(parameters: float) -> str:
    return f"{parameters / 1e9:.1f}B"


def effective_batched_tokens(case: Deployment) -> int | None:
    """max_num_batched_tokens as given, or vLLM's default on the GPU; None if unknown."""
    return positive_int(case.setting, "max_num_batched_tokens") or _default_of(case, "max_num_batched_tokens")


def effective_seqs(case: Deployment) -> int | None:
    """max_num_seqs as given, or vLLM's default on the GPU; None if unknown."""
    given, default = positive_int(case.setting, "max_num_seqs"), _default_of(case, "max_num_seqs")
    if given is not None or default is None:
        return given
    return min(default, effective_batched_tokens(case) or default)


def _default_of(case: Deployment, knob: Knob) -> int | None:
    """The default of vLLM on the GPU of the deployment; None if that is unknown."""
    if case.card is None or case.card.memory_gib is None:
        return None
    default = find_default_number(knob, case.version, memory_gib=case.card.memory_gib, card=case.card.name)
    return None if default is None else int(default)
