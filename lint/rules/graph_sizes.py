"""Batches for which no CUDA graph is captured: rule G2.

By default vLLM captures graphs for 1, 2 and 4 tokens, for each 8 more up to 256 and each 16 more from there.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.drafts import find_flags
from flettner.vllm_facts.log_counts import LEAST, read_counts
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    draft_tokens,
    effective_batched_tokens,
    has_any,
    is_older_than,
    is_omni,
    is_pooling,
    is_v0_by_default,
    json_entry,
    release_number,
)
from flettner.vllm_facts.sizing.kv_cache import longest_request
from flettner.vllm_facts.sizing.limits import find_limits
from flettner.vllm_facts.start_facts import find_last

LENGTH, LENGTH_BY_DEFAULT = "max_seq_len_to_capture", 8192
V0_REMOVED = (0, 11)
SEQS, LARGEST, SIZES = "max_num_seqs", "max_cudagraph_capture_size", "cudagraph_capture_sizes"
GRAPHS_COUNT_DRAFTS = (0, 12)  # since then the default is min(2 x max_num_seqs x (1 + drafts), 512)
FULL_BY_DEFAULT, COVERS_ALL = (0, 12), (0, 31)  # decoding in full graphs; a graph for max_num_seqs itself
GRID = (1, 2, 4, *range(8, 257, 8), *range(272, 1025, 16))
CEILING = 512
LATE_ANSWERS = frozenset({"chat", "api"})  # profiles in which somebody waits for each token
_SEVERAL = 16  # requests at once: reported from 32 on
_STEP = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(?P<tokens>\d{1,7})\b")


def _check_capture_sizes(config: ServeConfig) -> Iterable[Finding]:
    seqs, largest, knob = positive_int(config.setting, SEQS), positive_int(config.setting, LARGEST), LARGEST
    given = largest
    if largest is not None:
        largest = GRID[bisect_right(GRID, largest) - 1]  # "Truncating max_cudagraph_capture_size to"
    else:
        knob = SIZES
        sizes = [int(word) for word in str(config.setting.get(knob) or "").split() if word.isdecimal()]
        given = largest = max(sizes, default=None)
    if seqs is None or largest is None or given is None:
        return
    width = 1 + draft_tokens(config)  # a graph's size is in tokens
    default = min(2 * seqs * (1 if is_older_than(config, GRAPHS_COUNT_DRAFTS) else width), CEILING)
    if seqs * width <= largest or given >= default:
        return
    each = f" of {width} tokens each" if width > 1 else ""
    cut = f" ({given} is no size that is captured)" if given > largest else ""
    yield Finding(
        rule="G2",
        klass="auto",
        severity="warning",
        why=(
            f"{knob} ends at {largest}{cut}, yet up to {seqs} sequences{each} run: larger batches run "
            "without a graph"
        ),
        to={knob: None},
        expects=f"no step in ITL above {largest // width} sequences: by default graphs go to {default}",
        risks="more graphs: a longer start and a little GPU memory",
        evidence={SEQS: seqs, "largest": largest} | ({"drafts": width - 1} if width > 1 else {}),
    )


def _has_default_graphs(config: ServeConfig) -> bool:
    mode = str(json_entry(config, "compilation_config", "cudagraph_mode") or "FULL_AND_PIECEWISE").upper()
    chosen = (LARGEST, SIZES, *(f"compilation_config.{name}" for name in (LARGEST, SIZES)))
    inside = '"cudagraph_capture_sizes"' in str(config.setting.get("compilation_config") or "")
    slow = config.setting.get("enforce_eager") is True or str(config.setting.get("optimization_level")) in {
        "0",
        "1",
    }
    sized = inside or any(config.setting.get(name) is not None for name in chosen)
    speculates = bool(find_flags(config.setting))
    return mode.startswith("FULL") and not (
        slow or sized or speculates or is_pooling(config) or is_omni(config)
    )


def _check_uncovered_batches(config: ServeConfig) -> Iterable[Finding]:
    """A batch between the last size of the grid and max_num_seqs leaves the full graphs of decoding."""
    seqs, release = positive_int(config.setting, SEQS), release_number(config)
    if seqs is None or release is None or not FULL_BY_DEFAULT <= release < COVERS_ALL:
        return
    if seqs > CEILING or seqs in GRID or not _has_default_graphs(config):
        return
    place = bisect_right(GRID, seqs)
    covered, above = GRID[place - 1], GRID[place]
    limit = find_limits(config).get(SEQS)
    fits = limit is None or above <= limit.value
    yield Finding(
        rule="G2",
        klass="auto",
        severity="warning",
        why=(
            f"{SEQS} {seqs} is no size of a CUDA graph with vLLM {config.version}: full graphs of decoding "
            f"go to {covered}, so larger batches, those of a full server, run in pieces"
        ),
        to={SEQS: above if fits else covered},
        expects="no step in ITL when the server is full",
        risks="a few more requests share the KV cache" if fits else "a few requests fewer run at once",
        evidence={SEQS: seqs, "covered": covered},
    )


def _check_mixed_steps(config: ServeConfig) -> Iterable[Finding]:
    """A remark: a step with a part of a prompt is larger than any graph, so it is launched in pieces."""
    told, given = find_last(_STEP, config.log), effective_batched_tokens(config)
    step = int(told["tokens"]) if told else given
    if (
        step is None
        or step <= CEILING
        or config.profile not in LATE_ANSWERS
        or not _has_default_graphs(config)
    ):
        return
    mixed = [
        count
        for count in read_counts(config.log)
        if count.running >= _SEVERAL and count.answers > count.running and count.prompts >= step
    ]
    if len(mixed) < LEAST or is_older_than(config, FULL_BY_DEFAULT):
        return
    yield Finding(
        rule="G2",
        why=(
            f"by the log answers and prompts share the steps all the time, and with up to {step:,} tokens a "
            f"step is larger than any CUDA graph ({CEILING} by default): answers pause in each of them"
        ),
        expects=(
            f"if the tail of ITL matters, compare --{LARGEST.replace('_', '-')} {step}: it cut p99 of 337 ms "
            "on 4 GB200, with a p50 of 15; smaller steps did not bound it there"
        ),
        risks="many more graphs: a start of minutes more, and GPU memory",
        evidence={"step": step, "counts": len(mixed)},
    )


def _check_lengths(config: ServeConfig) -> Iterable[Finding]:
    """The V0 engine leaves its graphs once a request is longer than those that it captured."""
    chosen = is_older_than(config, V0_REMOVED) and config.env.get("VLLM_USE_V1") == "0"
    longest, given = longest_request(config), positive_int(config.setting, LENGTH)
    captured = given or LENGTH_BY_DEFAULT
    eager = config.setting.get("enforce_eager") is True
    adapters = config.setting.get("enable_lora") is True
    if not (adapters or given):
        return  # what it costs other models was not measured
    if not (is_v0_by_default(config) or chosen) or eager or is_pooling(config):
        return
    if longest is None or longest <= captured:
        return
    yield Finding(
        rule="G2",
        klass="auto" if adapters else "note",
        severity="info",
        why=(
            f"{LENGTH} {captured}{'' if given else ' (the default)'}: with vLLM {config.version} a step with "
            f"a request of more tokens decodes without CUDA graphs, and max_model_len is {longest}"
            + (
                ": each of LoRA's many kernels is then launched by Python (5 instead of 27 tokens/s are "
                "reported with 9,000 tokens)"
                if adapters
                else ""
            )
        ),
        to={LENGTH: longest} if adapters else {},
        expects="requests of any length decode with graphs"
        + ("" if adapters else f", with --{LENGTH.replace('_', '-')} {longest}"),
        risks="a little more GPU memory",
        evidence={LENGTH: captured, "max_model_len": longest},
    )


_SOURCE = "vllm/config/vllm.py: _set_cudagraph_sizes"

LINTS = (
    DeploymentCheck(
        rules=("G2",),
        find=_check_mixed_steps,
        reports="steps of prompts and answers that are larger than any CUDA graph, by the counts of the log",
        source=f"{_SOURCE}; vllm-project/vllm#56975",
        evidence_for=(
            "p99 of ITL 20 times p50 with GLM-5.3-Flash on 4 GB200, less with graphs up to the size of a "
            "step (vllm-project/vllm#56975)"
        ),
        needs=Needs(facts=("log", "profile")),
    ),
    DeploymentCheck(
        rules=("G2",),
        find=_check_capture_sizes,
        reports="CUDA graphs that end below max_num_seqs",
        source=f"{_SOURCE} (up to min(2 x max_num_seqs, 512)); vllm-project/vllm#37865",
        evidence_for=(
            "133 instead of 25 tokens/s with 6 requests of 7 tokens each, on a GB10 (vllm-project/vllm#37865)"
        ),
    ),
    DeploymentCheck(
        rules=("G2",),
        find=_check_uncovered_batches,
        reports="a max_num_seqs that is no size of a CUDA graph, before 0.31",
        source=f"{_SOURCE}; vllm-project/vllm#57355 (fixed in 0.31)",
        evidence_for=(
            "5 requests at once have half the speed with 6 that they have with 8 (vllm-project/vllm#46329); "
            "97 of 100 fall behind 96 on 4 B200 (vllm-project/vllm#57355)"
        ),
        needs=Needs(facts=("version",), applies=has_any(SEQS)),
    ),
    DeploymentCheck(
        rules=("G2",),
        find=_check_lengths,
        reports="requests that may be longer than the CUDA graphs of the V0 engine cover",
        source="vLLM 0.6 vllm/config.py: max_seq_len_to_capture; vllm-project/vllm#9143",
        evidence_for="no public measurement of one model under two lengths",
        needs=Needs(facts=("version",)),
    ),
)
