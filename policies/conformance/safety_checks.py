"""Safety limits of the proposals of all policies. Each kind of harm is a row of HARMS."""

from collections.abc import Callable, Sequence

from flettner.agent.domain.model import Objective, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Latency, Reading
from flettner.vllm_facts.drafts import keeps_method
from flettner.vllm_facts.knobs import KNOBS, misfit, tunable
from flettner.vllm_facts.values import Knob, Value, as_number

SEQS = ("max_num_seqs", "max_num_active_seqs")
TOKENS = ("max_num_batched_tokens", "max_num_scheduled_tokens")
MEMORY = ("gpu_memory_utilization", "kv_cache_memory_bytes")
LOAD_KNOBS = frozenset({*SEQS, *TOKENS, *MEMORY, "watermark", "long_prefill_token_threshold"})
KV_FULL, KV_FREE = 0.95, 0.6  # KV cache usage ratio, the highest of the window
MEMORY_MOST = 0.95  # more only within an operator's bound
COVERAGE_LEAST = 0.8
STRICTNESS = {"auto": 0, "gated": 1, "note": 2, "never": 2}

SafetyCheck = Callable[[Reading, Context, Proposal], str]
"""The violated limit, or "" if there is none."""


def harms(reading: Reading, context: Context, proposals: Sequence[Proposal]) -> tuple[str, ...]:
    """The harm of these proposals for one reading: a sentence for each harm, `RULE: …`."""
    faults = [
        f"{proposal.rule}: {harm}"
        for proposal in proposals
        if proposal.to
        for check in HARMS
        if (harm := check(reading, context, proposal))
    ]
    return (*faults, *contradictions(context, proposals))


def contradictions(context: Context, proposals: Sequence[Proposal]) -> tuple[str, ...]:
    """Knobs that one proposal raises and another lowers."""
    ways: dict[Knob, dict[bool, str]] = {}
    for proposal in proposals:
        for knob in proposal.to:
            way = upwards(context, proposal, knob)
            if way is not None:
                ways.setdefault(knob, {}).setdefault(way, proposal.rule)
    return tuple(
        f"{rules[True]} raises {knob} and {rules[False]} lowers it"
        for knob, rules in ways.items()
        if len(rules) == len((True, False))
    )


def upwards(context: Context, proposal: Proposal, knob: Knob) -> bool | None:
    """True if the knob rises; None if it is unchanged, not a number, or its present value is unknown."""
    given = context.setting.get(knob)
    before = as_number(proposal.assumed.get(knob) if given is None else given)
    after = as_number(proposal.to[knob])
    return None if before is None or after is None or before == after else after > before


def _unknown_knob(reading: Reading, context: Context, proposal: Proposal) -> str:
    """Refuse flags that the server's version lacks. A flag in use exists, even if the version is unknown."""
    version = reading.facts.get("version")
    for knob in proposal.to:
        flag = _flag(knob)
        if flag not in KNOBS:
            return f"{knob} is not in the catalogue of knobs"
        if knob not in context.setting and KNOBS[flag].in_version(version) is False:
            return f"vLLM {version} has no {knob}"
    return ""


def _invalid_value(_: Reading, __: Context, proposal: Proposal) -> str:
    return next(
        (f"{k} = {v!r} is not a value that vLLM accepts" for k, v in proposal.to.items() if not takes(k, v)),
        "",
    )


def takes(knob: Knob, value: Value) -> bool:
    facts = KNOBS.get(knob)
    if facts is None or value is None:
        return True
    number = as_number(value)
    if facts.type == "bool":
        return isinstance(value, bool)
    if facts.type == "int" and not isinstance(value, int):
        return False
    if facts.type in {"int", "float"} and number is None:
        return False
    low_enough = facts.max is None or number is None or number <= facts.max
    high_enough = facts.min is None or number is None or number >= facts.min
    named = number is not None or not facts.choices or value in facts.choices
    return low_enough and high_enough and named


def _out_of_bounds(_: Reading, context: Context, proposal: Proposal) -> str:
    for knob, value in proposal.to.items():
        if not context.bound(knob).allows(value):
            return f"{knob} = {value!r} is outside the operator's bounds"
    return ""


def _unchanged(_: Reading, context: Context, proposal: Proposal) -> str:
    same = [k for k, v in proposal.to.items() if k in context.setting and context.setting[k] == v]
    return f"{same[0]} is {proposal.to[same[0]]!r} already" if same else ""


def _class_too_permissive(_: Reading, __: Context, proposal: Proposal) -> str:
    for knob in proposal.to:
        klass = KNOBS[_flag(knob)].klass if _flag(knob) in KNOBS else "auto"
        if STRICTNESS[klass] > STRICTNESS[proposal.klass]:
            return f"{knob} is {klass}, but the proposal's class is {proposal.klass}"
    return ""


def _not_admitted(_: Reading, context: Context, proposal: Proposal) -> str:
    """The guard refuses the value, unless the operator lists it for the knob."""
    for knob, value in proposal.to.items() if proposal.klass != "note" else ():
        if knob in context.bounds or keeps_method(knob, context.setting.get(knob), value):
            continue
        if not tunable(knob):
            return f"{knob} is not tunable: propose it as a note"
        if why := misfit(knob, value):
            return f"{knob} = {value!r}, but it {why}"
    return ""


def _insufficient_coverage(reading: Reading, _: Context, __: Proposal) -> str:
    seen = reading.coverage
    return f"only {seen:.0%} of the window was observed" if seen < COVERAGE_LEAST else ""


def _tuned_while_idle(reading: Reading, _: Context, proposal: Proposal) -> str:
    nothing = reading.running.high <= 0 and reading.waiting.high <= 0 and not (reading.ttft or reading.itl)
    tuned = sorted(LOAD_KNOBS & proposal.to.keys())
    return f"{tuned[0]} changes although no request ran or waited" if nothing and tuned else ""


def _tuned_while_hung(reading: Reading, _: Context, proposal: Proposal) -> str:
    tuned = sorted(LOAD_KNOBS & proposal.to.keys())
    if not tuned or not reading.stands_still or _out_of_memory(reading):
        return ""
    return f"{tuned[0]} changes although the server hangs: it generated no token"


def _more_under_pressure(reading: Reading, context: Context, proposal: Proposal) -> str:
    raised = [knob for knob in SEQS if knob in proposal.to and upwards(context, proposal, knob)]
    if not raised:
        return ""
    if _has_cache_pressure(reading):
        return f"{raised[0]} rises although the KV cache is full or preempts"
    return "" if reading.kv_usage else f"{raised[0]} rises although the KV cache usage is unknown"


def _fewer_under_a_queue(reading: Reading, context: Context, proposal: Proposal) -> str:
    free = (
        reading.kv_usage is not None and reading.kv_usage.high <= KV_FREE and not _has_cache_pressure(reading)
    )
    if not (free and reading.waiting.low > 0):
        return ""
    lowered = [k for k in SEQS if k in proposal.to and upwards(context, proposal, k) is False]
    return f"{lowered[0]} falls although requests wait and the KV cache is free" if lowered else ""


def _less_cache_under_pressure(reading: Reading, context: Context, proposal: Proposal) -> str:
    if not _has_cache_pressure(reading) or _out_of_memory(reading):
        return ""
    lowered = [k for k in MEMORY if k in proposal.to and upwards(context, proposal, k) is False]
    return f"{lowered[0]} falls although the KV cache is full or preempts" if lowered else ""


def _more_after_oom(reading: Reading, context: Context, proposal: Proposal) -> str:
    if not _out_of_memory(reading):
        return ""
    hungry = (*MEMORY, *SEQS, *TOKENS, "max_model_len")
    raised = [knob for knob in hungry if knob in proposal.to and upwards(context, proposal, knob)]
    return f"{raised[0]} rises although the server ran out of memory" if raised else ""


def _most_memory(_: Reading, context: Context, proposal: Proposal) -> str:
    share = as_number(proposal.to.get("gpu_memory_utilization"))
    bound = context.bounds.get("gpu_memory_utilization")
    allowed = bound is not None and (bound.max is not None or bool(bound.allowed))
    if share is None or share <= MEMORY_MOST or allowed:
        return ""
    return f"gpu_memory_utilization {share} leaves no memory for usage that vLLM does not count"


def _against_an_objective(reading: Reading, context: Context, proposal: Proposal) -> str:
    ttft, itl = (
        _misses_objective(reading.ttft, context.slo.ttft),
        _misses_objective(reading.itl, context.slo.itl),
    )
    for knob in TOKENS:
        way = upwards(context, proposal, knob) if knob in proposal.to else None
        if way is True and itl and not ttft:
            return f"{knob} rises although ITL is late and TTFT is not"
        if way is False and ttft and not itl:
            return f"{knob} falls although TTFT is late and ITL is not"
    return ""


def _incoherent(_: Reading, context: Context, proposal: Proposal) -> str:
    """Pairs of values with which vLLM does not start, apart from pairs that the setting already has."""
    before, after = context.setting, {**context.setting, **proposal.to}
    for small, large in (("max_num_active_seqs", "max_num_seqs"), ("max_num_seqs", "max_num_batched_tokens")):
        was, now = (_exceeds(setting.get(small), setting.get(large)) for setting in (before, after))
        if now and not was:
            return f"{small} {after[small]} would be above {large} {after[large]}"
    return ""


HARMS: tuple[SafetyCheck, ...] = (
    _unknown_knob,
    _invalid_value,
    _out_of_bounds,
    _unchanged,
    _class_too_permissive,
    _not_admitted,
    _insufficient_coverage,
    _tuned_while_idle,
    _tuned_while_hung,
    _more_under_pressure,
    _fewer_under_a_queue,
    _less_cache_under_pressure,
    _more_after_oom,
    _most_memory,
    _against_an_objective,
    _incoherent,
)


def _has_cache_pressure(reading: Reading) -> bool:
    preempts = reading.preemptions_per_s is not None and reading.preemptions_per_s.mean > 0
    return preempts or (reading.kv_usage is not None and reading.kv_usage.high >= KV_FULL)


def _out_of_memory(reading: Reading) -> bool:
    return any(incident.what == "oom" for incident in reading.incidents)


def _misses_objective(latency: Latency | None, objective: Objective | None) -> bool:
    over = latency.over_slo if latency else None
    return over is not None and objective is not None and over > 1 - objective.share


def _exceeds(small: Value, large: Value) -> bool:
    low, high = as_number(small), as_number(large)
    return low is not None and high is not None and low > high


def _flag(knob: Knob) -> Knob:
    """`compilation_config` of `compilation_config.cudagraph_mode`."""
    return knob.partition(".")[0]
