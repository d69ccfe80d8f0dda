"""A server that the model does not know: the simulated vLLM with another law of step time.

Its law is the roofline of kernel profiles with every coefficient off by a lognormal 15 %, attention one to
four times as dear, CUDA graphs padded, 6 % of noise on each step and hiccups. The model sees what vLLM's
iteration log would say: rounded times and a rounded share of the KV cache. The scheduler is the
simulator's, which steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log
from random import Random

from flettner.performance_model.acceptance import ServedRequest
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.fit import fit_law
from flettner.performance_model.iteration_log import StepRecord
from flettner.performance_model.outcome import Goals
from flettner.performance_model.prediction import find_headroom
from flettner.performance_model.trace import TraceRequest
from flettner.performance_model.work_windows import WorkWindow, timed_windows, windows_of_steps
from flettner.simulator.hardware import GIB, PRESETS, Hardware, scaled
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.replay import replay
from flettner.simulator.scheduler import Scheduler, SchedulerLimits, SimulatedRequest
from flettner.simulator.step_time import StepTime, StepWork
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Setting

OFF, JITTER = 0.15, 0.06
HICCUP_SHARE, HICCUP_S = 0.002, 0.05
GPUS = {
    "4090-8b": ("RTX 4090", "meta-llama/Llama-3.1-8B"),
    "h100-8b": ("H100", "meta-llama/Llama-3.1-8B"),
    "t4-8b-awq": ("Tesla T4", "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"),
}
"""What a daemon knows of a preset: the GPU and the model."""
LEFT_GIB = 1.5  # activations, graphs and context, beside weights and KV cache
CARRIED_S = 120.0  # of the loads that show what a setting carries


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Median lengths of prompts and answers, in tokens, and objectives in seconds."""

    name: str
    prompt: int
    output: int
    ttft_s: float
    itl_times: float  # of the shortest step


LOADS = (
    Load(name="chat", prompt=500, output=200, ttft_s=1.0, itl_times=2.0),
    Load(name="rag", prompt=2500, output=120, ttft_s=3.0, itl_times=3.0),
    Load(name="long answers", prompt=600, output=700, ttft_s=1.0, itl_times=2.0),
)


@dataclass(slots=True, kw_only=True)
class Recording:
    """What a run of the truth shows."""

    requests: Sequence[SimulatedRequest]
    steps: list[StepRecord] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)  # of the steps, as the arrivals
    ends_s: list[float] = field(default_factory=list)
    peak_running: int = 0

    def served(self) -> list[ServedRequest]:
        return [
            ServedRequest(
                ttft_s=(request.first_at or 0.0) - request.arrived_at,
                itl_s=((request.last_at or 0.0) - (request.first_at or 0.0)) / max(1, request.wanted - 1),
            )
            for request in self.requests
        ]

    def good(self, goals: Goals) -> list[bool]:
        """Return for each request, in order, whether it met the objectives."""
        ttft_s, itl_s = goals.ttft_s or 0.0, goals.itl_s or 0.0
        return [request.ttft_s <= ttft_s and request.itl_s <= itl_s for request in self.served()]

    def timed_windows(self, limits: EngineLimits) -> list[tuple[float, WorkWindow]]:
        return list(timed_windows(zip(self.ends_s, self.steps, strict=True), limits.kv_tokens))


def unlike(name: str, seed: int) -> Hardware:
    """Return a preset of the simulator with other coefficients."""
    random = Random(f"truth:{name}:{seed}")  # noqa: S311 - reproducible, not secret
    gpu = PRESETS[name]
    times = {
        field: random.lognormvariate(0, OFF)
        for field in ("weights_us", "tokens_from_us", "token_us", "head_us")
    }
    times |= {
        name: random.lognormvariate(0, OFF) for name in ("kv_read_us", "host_step_us", "host_sequence_us")
    }
    return scaled(gpu, {**times, "prefill_attention_us": random.uniform(1, 4)})


def case_of(name: str, limits: EngineLimits) -> ServeConfig:
    """Return the deployment as a daemon knows it."""
    card, model = GPUS[name]
    setting: Setting = {
        "model": model,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "enable_prefix_caching": limits.enable_prefix_caching,
        "max_model_len": 8192,
    }
    return ServeConfig(setting=setting, card=find_gpu(card), model=find_model(model))


def kv_blocks(gpu: Hardware) -> int:
    return int((0.9 * gpu.memory - gpu.weights - LEFT_GIB * GIB) / (16 * gpu.kv_token_bytes))


def traffic(load: Load, rate: float, seconds: float, seed: int) -> tuple[TraceRequest, ...]:
    random, at, made = Random(f"traffic:{load.name}:{seed}"), 0.0, []  # noqa: S311 - reproducible, not secret
    while (at := at + random.expovariate(rate)) < seconds:
        prompt = random.lognormvariate(log(load.prompt), 0.8)
        output = random.lognormvariate(log(load.output), 0.8)
        made.append(
            TraceRequest(
                arrival_s=at,
                prompt_tokens=int(min(6000, max(16, prompt))),
                output_tokens=int(min(1500, max(4, output))),
            )
        )
    return tuple(made)


def requests_of(trace: Sequence[TraceRequest]) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            name=str(number),
            prompt=request.prompt_tokens,
            wanted=request.output_tokens,
            arrived_at=request.arrival_s,
        )
        for number, request in enumerate(trace)
    ]


def run_truth(trace: Sequence[TraceRequest], gpu: Hardware, limits: EngineLimits, seed: int) -> Recording:
    """Run the simulated engine under the trace, with noise, step by step."""
    random = Random(f"noise:{seed}")  # noqa: S311 - reproducible, not secret
    law = StepTime(hardware=gpu)
    cache = KvCache(limits.kv_blocks, block_size=limits.block_size, caching=False)
    requests = requests_of(trace)
    recording, now = Recording(requests=requests), 0.0

    def seconds(work: StepWork) -> float:
        nonlocal now
        took = law.seconds(work) * random.lognormvariate(0, JITTER)
        took += HICCUP_S if random.random() < HICCUP_SHARE else 0.0
        recording.peak_running = max(recording.peak_running, len(scheduler.running))
        now = max(now, scheduler.running[0].arrived_at)  # the engine idled until then
        recording.starts_s.append(now)
        now += took
        decodes = work.sequences - work.prefills
        recording.steps.append(
            StepRecord(
                seconds=round(took, 5),
                prefills=work.prefills,
                prefill_tokens=work.tokens - decodes,
                decodes=decodes,
                decode_tokens=decodes,
                kv_share=round(cache.used_share, 3),
            )
        )
        recording.ends_s.append(now)
        return took

    bounds = SchedulerLimits(
        max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens
    )
    scheduler = Scheduler(bounds, cache)
    replay(requests, scheduler, seconds)
    return recording


@dataclass(frozen=True)
class TrueServer:
    """A server with a GPU that the model does not know, and its load.

    `seed`: of the GPU's law; noise and traffic add a shift to it.
    """

    gpu_name: str
    load: Load
    seed: int

    @cached_property
    def gpu(self) -> Hardware:
        return unlike(self.gpu_name, self.seed)

    @cached_property
    def default(self) -> EngineLimits:
        return EngineLimits(kv_blocks=kv_blocks(self.gpu), enable_prefix_caching=False)

    @property
    def goals(self) -> Goals:
        step_s = 1e-6 * (self.gpu.weights_us + self.gpu.head_us + self.gpu.host_step_us)
        slow = 3.0 if self.gpu.token_us > 200 else 1.0  # noqa: PLR2004 - the T4
        return Goals(ttft_s=slow * self.load.ttft_s, itl_s=self.load.itl_times * step_s)

    @cached_property
    def carried_rate(self) -> float:
        """Return the requests a second that the default setting carries, by a law fitted to the truth."""
        first = self.run(self.traffic(0.2, CARRIED_S, 0), self.default, 0)
        law = fit_law(list(windows_of_steps(first.steps, self.default.kv_tokens)), draws=0).law
        return find_headroom(self.traffic(0.5, CARRIED_S, 1), law, self.default, self.goals).rate_per_s or 0.2

    def with_limits(self, seqs: int, budget: int) -> EngineLimits:
        return replace(self.default, max_num_seqs=seqs, max_num_batched_tokens=budget)

    def traffic(self, rate: float, seconds: float, shift: int) -> tuple[TraceRequest, ...]:
        return traffic(self.load, rate, seconds, self.seed + shift)

    def run(self, trace: Sequence[TraceRequest], limits: EngineLimits, shift: int) -> Recording:
        return run_truth(trace, self.gpu, limits, self.seed + shift)
