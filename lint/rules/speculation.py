"""Speculative decoding that the log shows to be wasted (rule SD1), and drafts without a backend (rule H1)."""

import json
import re
from collections.abc import Iterable, Mapping

from flettner.lint.recogniser import recogniser
from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.drafts import find_flags, has_schedule
from flettner.vllm_facts.log_counts import usual_running
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.draft_gain import (
    BY_LOOKUP,
    LOOKUP_COST,
    MODEL_COST,
    find_gain,
    find_ridge,
    position_acceptance,
)
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    draft_tokens,
    is_at_least,
    is_sparse,
    json_entries,
    json_entry,
    layout,
    speculation_method,
    text_of,
)
from flettner.vllm_facts.sizing.parallel_layouts import is_pcie_only
from flettner.vllm_facts.values import Knob, Value

_LINE = 2000  # characters of a line that are read
_REJECTED = 5.0  # percent: below it not even a cheap draft pays, and most often the draft is a wrong one
_ENOUGH = 200  # drafted tokens of one line
_LATE = 0.4  # of the steps; 2 of 4 drafts with 0.60, 0.39 and 0.27 were best: eugr/spark-vllm-docker#343
_LOSES = 0.85  # of the tokens without drafts
_SURE = 1000  # drafted tokens of the log
_DRAFTED = re.compile(
    r"SpecDecoding metrics: .{0,300}?Accepted: (\d{1,12}) tokens, Drafted: (\d{1,12}) tokens"
)
_PARALLEL = frozenset({"dspark", "dflash"})  # their drafts look at all drafted tokens at once
_BLACKWELL = frozenset({(10, 0), (10, 3)})  # a GB10 (12.1) serves DFlash so: aeon-7/vllm-ultimate-dgx-spark#9
_FIRST_PARALLEL = (0, 20)  # none of its backends has both: vllm-project/vllm#41559
_OWN_CACHE_SINCE = (0, 26)  # speculative_config.kv_cache_dtype


def _rejected_drafts(match: re.Match[str], config: ServeConfig) -> Finding | None:
    accepted = float(match["accepted"])
    if accepted >= _REJECTED or int(match["drafted"]) < _ENOUGH:
        return None
    given = find_flags(config.setting)
    if not given:
        return None  # switched off since: the log is of another start
    method = speculation_method(config)
    cause = (
        "the texts repeat nothing of their prompts"
        if method.startswith("ngram") or method == "suffix"
        else "the draft model does not match: another base model, vocabulary, quantization or revision"
    )
    to: dict[Knob, Value] = dict.fromkeys(given)
    return Finding(
        rule="SD1",
        klass="gated",
        severity="warning",
        why=(
            f"according to the log {accepted:g} % of the drafted tokens are accepted: nearly all are "
            "computed in vain"
        ),
        to=to,
        expects=f"more throughput without speculation; or find out why, most likely {cause}",
        risks="answers may differ in the last digits of a logit",
        evidence={"line": match[0][:160], "accepted_percent": accepted},
    )


def _logs_drafts(config: ServeConfig) -> bool:
    return bool(find_flags(config.setting) and config.log)


def _check_drafts_in_large_batches(config: ServeConfig) -> Iterable[Finding]:
    """SD1: so many requests run that verifying drafts costs more than they bring.

    Not of mixtures of experts, whose steps read more weights the more tokens they have.
    """
    ridge, given, now = find_ridge(config), find_flags(config.setting), draft_tokens(config)
    if ridge is None or config.model is None or not (given and now):
        return
    if has_schedule(config.setting) or is_sparse(config) or (running := usual_running(config.log)) is None:
        return
    found = [match for line in config.log if (match := _DRAFTED.search(line[:_LINE]))]
    drafted = sum(int(match[2]) for match in found)
    if drafted < _SURE:
        return
    accepted = sum(int(match[1]) for match in found) / drafted
    each = LOOKUP_COST if speculation_method(config) in BY_LOOKUP else MODEL_COST
    position = position_acceptance(accepted, now)
    gain = find_gain(position, now, batch=running, ridge=ridge, each=each)
    if gain > _LOSES:
        return
    yield Finding(
        rule="SD1",
        klass="gated",
        severity="warning",
        why=(
            f"by the log {running} requests run at once: each step verifies {now} drafts of every one, which "
            f"takes longer than the {accepted:.0%} that are accepted save. A request gets about {gain:.1f} "
            "times as many tokens a second as without drafts"
        ),
        to=dict.fromkeys(given),
        expects="more throughput at this load without speculation; for few requests at once it pays",
        risks="requests that run alone take longer; answers may differ in the last digits of a logit",
        evidence={"running": running, "accepted_ratio": round(accepted, 2), "gain": round(gain, 2)},
    )


def _late_drafts(match: re.Match[str], config: ServeConfig) -> Finding | None:
    """Each position was accepted only if all before it were, so the rates fall."""
    rates = [float(rate) for rate in match["rates"].split(", ")]
    useful = next((place for place, rate in enumerate(rates) if rate < _LATE), len(rates))
    if not 0 < useful < len(rates) or int(match["drafted"]) < _ENOUGH or len(rates) != draft_tokens(config):
        return None
    late = ", ".join(f"{100 * rate:.0f}" for rate in rates[useful:])
    return Finding(
        rule="SD1",
        why=f"according to the log the drafts from the {_ordinal(useful + 1)} of {len(rates)} on are "
        f"accepted in {late} % of the steps: most are computed and verified in vain, the more the more "
        "requests run",
        expects=f"compare num_speculative_tokens {useful} under your load: more throughput with several "
        "requests at once, about the same with one",
        risks="with one request at a time more drafts may be as fast",
        evidence={"rates": match["rates"]},
        source="eugr/spark-vllm-docker#343; vllm-project/recipes#967",
    )


def _ordinal(place: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")


def _check_piped_drafts(config: ServeConfig) -> Iterable[Finding]:
    """A round of drafts passes all stages of a pipeline, and then the draft's own."""
    given, method = find_flags(config.setting), speculation_method(config)
    if not given or layout(config).pp == 1 or method.startswith("ngram") or method in {"", "suffix"}:
        return
    slow = is_pcie_only(config)
    yield Finding(
        rule="SD1",
        klass="gated" if slow else "note",
        severity="warning" if slow else "info",
        why=f"drafts ({method}) in a pipeline{' over PCIe' if slow else ''}: each round waits for all stages "
        "and for the draft, which costs more than it saves where the stages are linked slowly",
        to=dict.fromkeys(given) if slow else {},
        expects="compare without speculation: 61 instead of 44 tokens/s for one request and 163 instead of "
        "144 for eight, although 93 % of the first drafts were accepted",
        risks="none for the answers; over NVLink drafts may still pay",
        evidence={"pipeline_parallel_size": layout(config).pp},
    )


def drafts_in_parallel(config: ServeConfig) -> bool:
    return speculation_method(config) in _PARALLEL


def _check_draft_cache(config: ServeConfig) -> Iterable[Finding]:
    """A draft model inherits the KV cache of its target, for which its attention may have no backend."""
    cache, method = text_of(config, "kv_cache_dtype"), speculation_method(config)
    draft = text_of(config, "spec_model") or str(json_entry(config, "speculative_config", "model") or "")
    if (
        not drafts_in_parallel(config)
        or not cache.startswith(("fp8", "turboquant"))
        or draft in ("", config.setting.get("model"))
    ):
        return
    if json_entry(config, "speculative_config", "kv_cache_dtype") is not None:
        return
    capability = config.card.capability if config.card else None
    if config.start is not None and config.start.loaded:
        return  # the log knows better
    latent = cache == "fp8_ds_mla" or (config.model is not None and config.model.mla)
    early = release_of(config.version) == _FIRST_PARALLEL
    if not latent and not early and capability not in _BLACKWELL:
        return
    where = f"with vLLM {config.version}" if early else "on this GPU"
    named = "is made for latent attention" if latent else f"is read by causal attention only {where}"
    yield Finding(
        rule="H1",
        klass="gated",
        severity="error" if early else "warning",
        why=(
            f"the {method} draft inherits --kv-cache-dtype {cache}, which {named}: it finds no attention "
            "backend, and the server does not start"
        ),
        to=own_cache(config),
        expects="the draft keeps a small KV cache in 16 bit, its target that in fp8; before 0.26 only a KV "
        "cache without fp8, or another method, starts",
        risks="none known",
        evidence={"kv_cache_dtype": cache, "method": method},
    )


def own_cache(config: ServeConfig) -> Mapping[Knob, Value]:
    """The change that gives a draft model a KV cache in 16 bit, where the release can; else none."""
    if not is_at_least(config, _OWN_CACHE_SINCE):
        return {}
    given = json_entries(config, "speculative_config")
    if not given:
        return {"speculative_config.kv_cache_dtype": "bfloat16"}
    return {"speculative_config": json.dumps({**given, "kv_cache_dtype": "bfloat16"})}


LINTS = (
    DeploymentCheck(
        rules=("SD1",),
        find=_check_piped_drafts,
        reports="a draft model in a pipeline",
        source="vllm-project/vllm#44697",
        evidence_for="61 instead of 44 tokens/s without MTP, in 4 stages over PCIe (vllm-project/vllm#44697)",
        needs=Needs(for_change=("gpu",), applies=lambda config: bool(find_flags(config.setting))),
    ),
    DeploymentCheck(
        rules=("H1",),
        find=_check_draft_cache,
        reports="a KV cache in fp8 that the draft model of DFlash or DSpark cannot have",
        source="vllm-project/vllm#48787 (Blackwell); vllm-project/vllm#41559 (0.20); vllm-project/vllm#48380",
        needs=Needs(for_change=("version",), applies=drafts_in_parallel),
    ),
    DeploymentCheck(
        rules=("SD1",),
        find=_check_drafts_in_large_batches,
        reports="drafts that cost more than they bring with as many requests at once as the log shows",
        source=f"vllm-project/vllm#26504; vllm-project/vllm#19254; {DOCS}/features/spec_decode/",
        needs=Needs(for_change=("gpu",), applies=_logs_drafts),
    ),
    recogniser(
        "SD1",
        r"SpecDecoding metrics: .{0,300}?Drafted: (?P<drafted>\d{1,12}) tokens"
        r".{0,300}?acceptance rate: (?P<accepted>\d{1,3}(?:\.\d{1,6})?)%",
        _rejected_drafts,
        reports="drafts of which nearly none is accepted",
        source=f"vllm/v1/spec_decode/metrics.py: 'SpecDecoding metrics'; {DOCS}/features/spec_decode/",
    ),
    recogniser(
        "SD1",
        r"SpecDecoding metrics: .{0,300}?Drafted: (?P<drafted>\d{1,12}) tokens"
        r".{0,80}?Per-position acceptance rate: (?P<rates>\d\.\d{1,6}(?:, \d\.\d{1,6}){1,31}),",
        _late_drafts,
        reports="drafts at the end of the row that are rarely accepted",
        source=f"vllm/v1/spec_decode/metrics.py: 'SpecDecoding metrics'; {DOCS}/features/spec_decode/",
        evidence_for=(
            "304 instead of 210 tokens/s with 8 requests at 2 instead of 4 drafts "
            "(eugr/spark-vllm-docker#343); 10 % more with 3 than with 7 (vllm-project/recipes#967)"
        ),
    ),
)
