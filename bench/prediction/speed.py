"""CPU seconds of a prediction, of a search, and of stepping through the same load."""

from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

from bench.prediction.truth import LOADS, requests_of, traffic
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.search import search
from flettner.performance_model.step_law import StepLaw, UncertainLaw, widen
from flettner.performance_model.trace import TraceRequest
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.replay import replay
from flettner.simulator.scheduler import Scheduler, SchedulerLimits
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Setting

RATE, SECONDS = 10.0, 900.0
LAW = StepLaw(step_us=7_900, knee=135, token_us=24.4, sequence_us=40, kv_read_us=0.046, attention_us=0.001)
LIMITS = EngineLimits(kv_blocks=25_000, max_num_seqs=256, max_num_batched_tokens=8192)
STEPPED_S = 60.0


def measure_speed() -> dict[str, Any]:
    """Use the law of an 8B model on an H100; the search starts from a batch that is too small."""
    before = process_time()
    trace = traffic(LOADS[0], RATE, SECONDS, 1)
    once_s = _cpu_s(lambda: ReplayedScheduler(trace, LAW, LIMITS).run())
    part = [request for request in trace if request.arrival_s < STEPPED_S]
    stepped_s, jumped_s = (
        _cpu_s(lambda: _step(part)),
        _cpu_s(lambda: ReplayedScheduler(part, LAW, LIMITS).run()),
    )
    model = "meta-llama/Llama-3.1-8B"
    setting: Setting = {"model": model, "max_num_seqs": 16, "max_model_len": 8192}
    case = ServeConfig(setting=setting, card=find_gpu("H100"), model=find_model(model))
    results = []

    def look(law: UncertainLaw) -> float:
        goals = Goals(ttft_s=0.5, itl_s=0.03)
        return _cpu_s(lambda: results.append(search(case, trace, law, goals, kv_tokens=400_000)))

    searched_s = look(UncertainLaw(law=LAW))
    with_draws_s = look(widen(LAW, common=0.05, each=0.05, count=16, seed=1))
    return {
        "requests": len(trace),
        "seconds_of_traffic": SECONDS,
        "one_setting_cpu_s": round(once_s, 3),
        "us_per_request": round(1e6 * once_s / len(trace), 1),
        "times_as_fast_as_stepping": round(stepped_s / jumped_s, 1),
        "stepping_times_real_time": round(STEPPED_S / stepped_s),
        "search": {
            "settings": results[0].tried,
            "cpu_s": round(searched_s, 2),
            "cpu_s_with_16_draws_of_the_law": round(with_draws_s, 2),
            "change": dict(results[0].best.changes) if results[0].best else None,
            "gain_points": round(100 * results[0].gain, 1),
        },
        "cpu_s_of_all": round(process_time() - before, 1),
    }


def _step(trace: Sequence[TraceRequest]) -> None:
    bounds = SchedulerLimits(max_num_seqs=256, max_num_batched_tokens=8192)
    scheduler = Scheduler(bounds, KvCache(LIMITS.kv_blocks, caching=False))
    replay(
        requests_of(trace),
        scheduler,
        lambda work: LAW.seconds(work.tokens, work.sequences, work.kv_read, work.prefill_area),
    )


def _cpu_s(act: Callable[[], object]) -> float:
    before = process_time()
    act()
    return process_time() - before
