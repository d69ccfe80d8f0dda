"""Turn compilation and CUDA graphs on where they are off, and capture graphs for the batches that run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from re import findall

from flettner.agent.domain.lateness import misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.flags_in_force import find_max_num_seqs
from flettner.policies.shared.signals import (
    build_optimisation,
    check_options,
    has_insufficient_data,
    has_long_tail,
    ran_out_of_memory,
    read_environment,
)
from flettner.policies.shared.step_grid import step_up
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.knobs import release_of
from flettner.vllm_facts.references import FASTER_GRAPHS
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.sizing.effective_flags import runs_on_cpus
from flettner.vllm_facts.values import Knob, Setting, Value

EAGER, LEVEL, CONFIG = "enforce_eager", "optimization_level", "compilation_config"
LARGEST, SIZES = "max_cudagraph_capture_size", "cudagraph_capture_sizes"
DEFAULT_LARGEST = 512
CAPTURE_SINCE = (0, 12)
LOWER = frozenset({"NONE", "PIECEWISE", "FULL_DECODE_ONLY"})
DEBUGGING = ("CUDA_LAUNCH_BLOCKING", "VLLM_TRACE_FUNCTION")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """Rules G1, G2 and G3. Graphs take memory: after an OOM the policy proposes no more of them."""

    debugging: bool = False  # G1 and G3 do not fire: the server is slow on purpose
    tail_ratio: float = 3.0  # G2: ITL p99 over p50
    requests_at_least: int = 20  # G2: behind ITL
    graph_size_at_most: int = 1024  # G2
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        if context.config is not None and runs_on_cpus(context.config):
            return ()  # without CUDA graphs; what compilation brings there is not known
        if any(map(ran_out_of_memory, context.outcomes)):
            return ()
        debugging = self.debugging or any(name in read_environment(context) for name in DEBUGGING)
        if context.setting.get(EAGER) is True:
            answer = None if debugging else self._without_eager(reading, context)
        else:
            level = None if debugging else _default_level(reading, context)
            answer = level or self._enlarge_captures(reading, context)
        return (answer,) if answer else ()

    def _without_eager(self, reading: Reading, context: Context) -> Proposal | None:
        if not context.bound(EAGER).allows(False):
            return None
        tokens = reading.generation_tokens_per_s.mean if reading.generation_tokens_per_s else None
        rate = "" if tokens is None else f" at {tokens:.0f} tokens/s"
        proposal = build_optimisation(
            "G1",
            reading,
            {EAGER: False},
            f"{EAGER} is set: {reading.running.mean:.1f} requests ran{rate} over {reading.span_s:.0f} s "
            "without compilation and CUDA graphs",
            ("generation_tokens", tokens, "tokens/s"),
            expects=f"faster decoding ({FASTER_GRAPHS})",
            risks="graphs take GPU memory; the start takes minutes longer, once for each new setting",
            source=cite("vllm/config/vllm.py: 'Enforce eager set'; vllm-project/vllm-omni#7960"),
        )
        late = (
            misses_objective(reading.itl, context.slo.itl, self.requests_at_least),
            misses_objective(reading.ttft, context.slo.ttft, self.requests_at_least),
            misses_objective(reading.e2e, context.slo.e2e, self.requests_at_least),
        )
        return replace(proposal, mitigation=any(late))

    def _enlarge_captures(self, reading: Reading, context: Context) -> Proposal | None:
        """Batches above the largest captured size run without a graph: a step in ITL."""
        least = self.requests_at_least
        late = misses_objective(reading.itl, context.slo.itl, least)
        spikes = late or has_long_tail(reading.itl, self.tail_ratio, least)
        release = release_of(reading.facts.get("version"))
        if not spikes or reading.itl is None or release is None or release < CAPTURE_SINCE:
            return None
        largest, to, assumed = self._capture_proposal(reading, context)
        if largest is None or reading.running.high <= largest or not to:
            return None
        values = " and ".join(f"{k} {'as vLLM chooses' if v is None else v}" for k, v in to.items())
        proposal = build_optimisation(
            "G2",
            reading,
            to,
            f"ITL p99 {reading.itl.p99:.3f} s, p50 {reading.itl.p50:.3f} s, and up to "
            f"{reading.running.high:.0f} requests ran while graphs are captured up to {largest}: {values}",
            ("itl_p99", reading.itl.p99, "s"),
            ("itl_p50", reading.itl.p50, "s"),
            ("captured", float(largest), "requests"),
            expects="no batch runs without a graph: the spikes of ITL disappear",
            risks="graphs take GPU memory, and capturing them makes the start longer",
            source=cite("vllm/config/compilation.py: cudagraph_capture_sizes"),
            assumed=assumed,
        )
        return replace(proposal, mitigation=late)

    def _capture_proposal(
        self, reading: Reading, context: Context
    ) -> tuple[int | None, dict[Knob, Value], dict[Knob, Value]]:
        """The largest captured size, the size that covers the peak batch, and the assumed present value."""
        setting, peak = context.setting, reading.running.high
        seqs = find_max_num_seqs(setting, reading)
        default = min(2 * seqs, DEFAULT_LARGEST)
        sizes, largest = _whole_numbers(setting.get(SIZES)), positive_int(setting, LARGEST)
        given = [knob for knob in (SIZES, LARGEST) if setting.get(knob) is not None]
        current = max(sizes) if sizes else largest or default
        if any(knob.startswith(f"{CONFIG}.cudagraph_capture") for knob in setting):
            return None, {}, {}
        if given and peak <= default:
            free = all(context.bound(knob).allows(None) for knob in given)
            return current, dict.fromkeys(given) if free else {}, {}
        if sizes:
            return None, {}, {}
        limit = min(self.graph_size_at_most, max(seqs, current))
        value = step_up(context.bound(LARGEST), current=current, wanted=int(peak), limit=limit)
        covers = value is not None and value >= peak
        return current, {LARGEST: value} if covers else {}, {LARGEST: current}


def _default_level(reading: Reading, context: Context) -> Proposal | None:
    to, descriptions = _lower_levels(context.setting)
    if not to or not all(context.bound(knob).allows(value) for knob, value in to.items()):
        return None
    return build_optimisation(
        "G3",
        reading,
        to,
        f"{' and '.join(descriptions)}: less than vLLM's default (level 2, FULL_AND_PIECEWISE) while "
        f"{reading.running.mean:.1f} requests run",
        expects="more of each step runs from graphs: ITL falls",
        risks="a longer start; if a model or connector needs the lower mode, vLLM falls back on its own",
        source=cite("vllm/config/vllm.py: OptimizationLevel"),
        klass="auto" if set(to) == {LEVEL} else "note",  # the compilation config is the operator's choice
    )


def _lower_levels(setting: Setting) -> tuple[dict[Knob, Value], list[str]]:
    """The flags below the default, with the values that restore it, and their description."""
    to: dict[Knob, Value] = {}
    descriptions: list[str] = []
    if str(setting.get(LEVEL)).removeprefix("O") in {"0", "1"}:
        to[LEVEL] = None
        descriptions.append(f"optimisation level {setting[LEVEL]}")
    dotted = f"{CONFIG}.cudagraph_mode"
    if str(setting.get(dotted, "")).upper() in LOWER:
        to[dotted] = None
        descriptions.append(f"cudagraph_mode {setting[dotted]}")
    config = _table(setting.get(CONFIG))
    if str(config.get("cudagraph_mode", "")).upper() in LOWER:
        rest = {key: value for key, value in config.items() if key != "cudagraph_mode"}
        to[CONFIG] = json.dumps(rest) if rest else None
        descriptions.append(f"cudagraph_mode {config['cudagraph_mode']}")
    return to, descriptions


def _table(value: Value) -> dict[str, object]:
    try:
        table = json.loads(value) if isinstance(value, str) else {}
    except ValueError:
        return {}
    return table if isinstance(table, dict) else {}


def _whole_numbers(value: Value) -> list[int]:
    return [int(number) for number in findall(r"\d{1,6}", str(value))] if value is not None else []


plugin = Graphs
