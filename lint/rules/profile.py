"""W1: initial values for a kind of workload, where no measurement exists."""

from collections.abc import Iterable
from dataclasses import dataclass

from flettner.lint.missing_facts import ESTIMATE
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import OPTIMIZATION
from flettner.vllm_facts.releases.history import has_flag
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.capacity import seqs_that_fit
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    effective_batched_tokens,
    effective_seqs,
    is_expert_parallel,
    is_pooling,
    is_sparse,
    layout,
)
from flettner.vllm_facts.values import Knob

TOKENS, SEQS = "max_num_batched_tokens", "max_num_seqs"
_MODE = "performance_mode"
_UNDISTURBED = 4  # requests at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Values for a workload. A value within the range stays; `first` applies without a given value."""

    tokens: tuple[int, int]
    seqs: tuple[int, int]
    first_tokens: int
    first_seqs: int
    wants: str


PROFILES = {
    "chat": Profile(
        tokens=(1024, 4096), seqs=(32, 128), first_tokens=2048, first_seqs=128, wants="low ITL and TTFT"
    ),
    "api": Profile(
        tokens=(2048, 16384), seqs=(128, 512), first_tokens=8192, first_seqs=256, wants="both, in balance"
    ),
    "batch": Profile(
        tokens=(4096, 32768), seqs=(256, 1024), first_tokens=8192, first_seqs=512, wants="throughput"
    ),
    "rag": Profile(
        tokens=(8192, 16384), seqs=(32, 256), first_tokens=8192, first_seqs=64, wants="fast long prompts"
    ),
    "wide-ep": Profile(
        tokens=(8192, 16384), seqs=(256, 512), first_tokens=8192, first_seqs=256, wants="full experts"
    ),
}
"""Values to begin with: vLLM's guide names the direction of the tokens, and no ranges."""


def _check_profile(config: ServeConfig) -> Iterable[Finding]:
    profile = PROFILES.get(config.profile)
    if profile is None:
        return
    if config.profile == "wide-ep" and config.model and not config.model.experts:
        yield _dense_finding(config.model.name)
        return
    tokens = _value_finding(
        config, profile, TOKENS, effective_batched_tokens(config), profile.tokens, profile.first_tokens
    )
    seqs = _value_finding(config, profile, SEQS, effective_seqs(config), profile.seqs, profile.first_seqs)
    values = [finding for finding in (tokens, seqs) if finding and not _contradicts_log(finding, config)]
    yield from values
    if config.profile == "wide-ep":
        yield from _check_expert_parallel(config)
    if config.profile == "batch" and not values and not has_full_cache(config):
        yield from _check_mode(config)


def _check_mode(config: ServeConfig) -> Iterable[Finding]:
    """A remark: vLLM's own larger defaults, where the command leaves the batch to it."""
    if config.setting.get(_MODE) is not None or has_flag(_MODE, config.version) is not True:
        return
    if TOKENS in config.setting or SEQS in config.setting or is_pooling(config):
        return
    yield Finding(
        rule="W1",
        why="the batch is left to vLLM, whose defaults are a balance of latency and throughput",
        expects="compare --performance-mode throughput: 16 % more tokens/s are reported for a 9B model on an "
        "H100, together with max_num_seqs 512",
        risks="ITL rises with the batch",
        source="vllm/config/vllm.py: performance_mode; "
        "https://docs.gpustack.ai/latest/performance-lab/qwen3.5-9b/h100",
        evidence={"profile": config.profile},
    )


def _dense_finding(name: str) -> Finding:
    return Finding(
        rule="W1",
        why=f"the profile wide-ep is for models with experts: {name} has none",
        expects="name the traffic instead: chat, api, batch or rag",
        risks="none",
    )


def _value_finding(
    config: ServeConfig,
    profile: Profile,
    knob: Knob,
    current: int | None,
    within: tuple[int, int],
    first: int,
) -> Finding | None:
    least, most = within
    if current is not None and least <= current <= most:
        return None
    given = positive_int(config.setting, knob) is not None
    to = _reachable_value(
        config, knob, current, first if not given or current is None else _clamp(current, within)
    )
    if to is None:
        return None
    shown = f"{knob} {current}" if given else f"{knob} is not given"
    shown += f" ({current} on this card)" if current is not None and not given else ""
    return Finding(
        rule="W1",
        klass="auto",
        severity="warning" if given else "info",
        why=f"{shown}; {config.profile} wants {profile.wants}: {least} to {most} is a good start",
        to={knob: to},
        expects="sane initial values, to be corrected by measurements",
        risks="a template does not know your prompts: measure before and after",
        evidence={"profile": config.profile, knob: current},
    )


def _contradicts_log(finding: Finding, config: ServeConfig) -> bool:
    """Whether the log measured that a value to begin with would be worse, or would change nothing."""
    current = finding.evidence[_knob_of(finding)]
    most = config.start.most_at_once if config.start else None
    to = finding.to[_knob_of(finding)]
    if not isinstance(to, int):
        return False
    raises = not isinstance(current, int) or to > current
    if raises and has_full_cache(config):
        return True  # more sequences are preempted sooner, and larger steps take memory from the cache
    if _knob_of(finding) == TOKENS and not raises and most is not None and most <= _UNDISTURBED:
        return True  # hardly an answer waits for another's prompt, which small steps make later
    below = to if not isinstance(current, int) else min(to, current)
    return _knob_of(finding) == SEQS and most is not None and most <= below


def has_full_cache(config: ServeConfig) -> bool:
    """Whether requests waited for room in the KV cache when the log ended."""
    return config.start is not None and config.start.full_cache


def _knob_of(finding: Finding) -> Knob:
    return next(iter(finding.to))


def _clamp(current: int, within: tuple[int, int]) -> int:
    return min(max(current, within[0]), within[1])


def _reachable_value(config: ServeConfig, knob: Knob, current: int | None, to: int) -> int | None:
    """`to`, reduced to the sequences that the KV cache holds; None if that is no improvement."""
    if knob != SEQS or (current is not None and to < current):
        return to
    fitting = _largest_that_fits(config, to)
    return fitting if fitting is not None and (current is None or fitting > current) else None


def _largest_that_fits(config: ServeConfig, wanted: int) -> int | None:
    """The largest halving of `wanted` that the KV cache holds; `wanted` if the cache size is unknown."""
    room = seqs_that_fit(config)
    if room is None:
        return wanted
    while wanted > room and wanted > 1:
        wanted //= 2
    return wanted if wanted <= room else None


def _check_expert_parallel(config: ServeConfig) -> Iterable[Finding]:
    if not is_sparse(config) or layout(config).tp * layout(config).dp == 1:
        return
    knobs = {
        "enable_expert_parallel": is_expert_parallel(config),
        "enable_eplb": config.setting.get("enable_eplb"),
    }
    missing = [knob for knob, value in knobs.items() if value is not True]
    if missing:
        yield Finding(
            rule="W1",
            klass="gated",
            why=f"wide expert parallelism without {' and '.join(missing)} on {layout(config).gpus} GPUs",
            to=dict.fromkeys(missing, True),
            expects="each GPU holds full experts, and busy experts are spread",
            risks="redundant experts take memory; --enable-dbo also needs a DeepEP or NIXL backend",
            source="vllm/config/parallel.py: enable_eplb (EPLB needs EP, DBO such a backend)",
        )


LINTS = (
    DeploymentCheck(
        rules=("W1",),
        find=_check_profile,
        reports="batch sizes outside the usual range for the kind of traffic",
        source=f"{OPTIMIZATION} (chunked prefill: few tokens for ITL, many for TTFT and throughput)",
        evidence_for="no public measurement of the ranges: they are values to begin with",
        needs=Needs(facts=("profile",), for_change=ESTIMATE),
    ),
)
