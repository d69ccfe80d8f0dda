"""Relieve a GPU that waits for the host: more API servers, async scheduling; or report low load."""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.signals import (
    build_note,
    build_optimisation,
    check_options,
    find_peak_gpu_utilization,
    first_allowed,
    has_insufficient_data,
    has_queue,
    is_kv_cache_free,
    read_environment,
)
from flettner.policies.shared.step_grid import step_up
from flettner.vllm_facts import drafts
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.knobs import release_of
from flettner.vllm_facts.references import METRICS, OPTIMIZATION
from flettner.vllm_facts.values import Setting

SERVERS, TOKENIZER, ASYNC = "api_server_count", "tokenizer_mode", "async_scheduling"
ASYNC_SINCE = (0, 14)
ASYNC_METHODS = ("eagle", "mtp", "draft_model", "ngram_gpu", "dspark", "dflash")
ALONE = ("headless", "grpc", "data_parallel_external_lb", "data_parallel_hybrid_lb")
"""Flags that do not go together with more API servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBound:
    """Rules C1, C2 and A1."""

    cpu_series: str = "cpu_utilization"  # of the reading's series: 0..1, of the server's cores
    cpu_busy_above_ratio: float = 0.8
    gpu_idle_below_ratio: float = 0.6  # utilisation of the busiest GPU
    queue_at_least: float = 1.0  # C1: requests that wait, in both halves of the window
    kv_free_below_ratio: float = 0.9  # C1: highest KV usage of the window
    servers_at_most: int = 4
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        busy = find_peak_gpu_utilization(reading)
        proposals = [self._enable_async(reading, context)]
        if busy is not None and busy < self.gpu_idle_below_ratio:
            proposals += [self._add_api_servers(reading, context, busy), self._note_low_load(reading, busy)]
        return tuple(proposal for proposal in proposals if proposal)

    def _add_api_servers(self, reading: Reading, context: Context, busy: float) -> Proposal | None:
        cpu, setting = reading.series.get(self.cpu_series), context.setting
        if cpu is None or cpu <= self.cpu_busy_above_ratio or not has_queue(reading, self.queue_at_least):
            return None
        if not is_kv_cache_free(reading, self.kv_free_below_ratio):
            return None
        why = (
            f"over {reading.span_s:.0f} s {reading.waiting.mean:.1f} requests waited, the GPU was {busy:.0%} "
            f"busy and the CPU {cpu:.0%}: the host is the bottleneck"
        )
        numbers = (("gpu_utilization", busy, "ratio"), ("cpu_utilization", cpu, "ratio"))
        source = f"{OPTIMIZATION} (parallel processing)"
        fast = first_allowed(context.bound(TOKENIZER), None, "auto")
        if setting.get(TOKENIZER) == "slow" and fast:
            return build_optimisation(
                "C1",
                reading,
                {TOKENIZER: fast[0]},
                f"{why}, and the slow tokenizer is configured",
                *numbers,
                expects="prompts are tokenized faster: TTFT falls",
                risks="a fast tokenizer may split text differently",
                source=source,
                klass="note",  # which tokenizer reads the prompts is the operator's choice
            )
        now = positive_int(setting, SERVERS) or positive_int(setting, "data_parallel_size") or 1
        servers = step_up(context.bound(SERVERS), current=now, wanted=now * 2, limit=self.servers_at_most)
        lora = read_environment(context).get("VLLM_ALLOW_RUNTIME_LORA_UPDATING")
        if servers is None or lora or any(setting.get(knob) for knob in ALONE):
            return None
        return build_optimisation(
            "C1",
            reading,
            {SERVERS: servers},
            f"{why}: raise {SERVERS} from {now} to {servers}",
            *numbers,
            expects="tokenizing and answering use more cores: TTFT falls, the GPU gets more work",
            risks="no gain without free cores; the process metrics of the server disappear",
            source=source,
            assumed={SERVERS: now},
        )

    def _note_low_load(self, reading: Reading, busy: float) -> Proposal | None:
        if reading.waiting.high > 0:
            return None
        why = (
            f"over {reading.span_s:.0f} s nothing waited and the GPU was {busy:.0%} busy: it is under-loaded"
        )
        advice = "no change: the server has capacity for more load"
        numbers = ("gpu_utilization", busy, "ratio")
        return build_note("C2", reading, why, advice, METRICS, numbers)

    def _enable_async(self, reading: Reading, context: Context) -> Proposal | None:
        setting, release = context.setting, release_of(reading.facts.get("version"))
        on = first_allowed(context.bound(ASYNC), None, True)
        if setting.get(ASYNC) is not False or release is None or release < ASYNC_SINCE or not on:
            return None
        if not _supports_async(setting):
            return None
        return build_optimisation(
            "A1",
            reading,
            {ASYNC: on[0]},
            f"async scheduling is turned off on vLLM {release[0]}.{release[1]}, where it is on by default, "
            f"while {reading.running.mean:.1f} requests run",
            expects="the next step is scheduled while the GPU works on this one: ITL falls",
            risks="close to none: vLLM leaves it off if the executor or the model does not support it",
            source="vllm-project/vllm#27614 (the default since 0.14)",
        )


def _supports_async(setting: Setting) -> bool:
    """False for speculation methods that vLLM documents as incompatible with async scheduling."""
    if (positive_int(setting, "pipeline_parallel_size") or 1) > 1 or setting.get("enable_dbo"):
        return False
    if setting.get("distributed_executor_backend") not in {None, "mp", "uni"}:
        return False
    methods = " ".join(str(setting[knob]) for knob in drafts.FLAGS if setting.get(knob) is not None)
    return not methods or any(method in methods for method in ASYNC_METHODS)


plugin = HostBound
