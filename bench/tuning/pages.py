"""What a scrape of /metrics each second would have shown of a recorded run of the truth."""

from bisect import bisect_left
from itertools import accumulate, pairwise

from bench.prediction.truth import Recording
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.work_windows import WorkWindow, window_between
from flettner.simulator.metrics import ITERATION_TOKENS
from flettner.vllm_facts.metrics.page_totals import HistogramTotals, PageTotals

_EDGES = (*ITERATION_TOKENS, float("inf"))
_ONE = (float("inf"),)


def windows_of_pages(recording: Recording, limits: EngineLimits, every_s: float) -> list[WorkWindow]:
    """Return a window for each pair of scrapes between which the engine never idled."""
    totals = _Totals(limits)
    pages: list[tuple[float, PageTotals, bool]] = []
    firsts = sorted((request.first_at or 0.0, request.prompt) for request in recording.requests)
    due, began, is_busy, counted = every_s, 0.0, True, 0
    for step, end_s, start_s in zip(recording.steps, recording.ends_s, recording.starts_s, strict=True):
        is_busy = is_busy and start_s <= began
        began = end_s
        prompts = 0
        while counted < len(firsts) and firsts[counted][0] <= end_s + 1e-9:
            prompts += firsts[counted][1]
            totals.prompts += 1
            counted += 1
        totals.observe(prompts, step.decodes)
        if end_s >= due:
            pages.append((end_s, totals.page(step.kv_share or 0.0), is_busy))
            due, is_busy = end_s + every_s, True
    windows = [
        window_between(before, after, late - early, limits.max_num_batched_tokens)
        for (early, before, _), (late, after, busy) in pairwise(pages)
        if busy
    ]
    return [window for window in windows if window is not None]


class _Totals:
    def __init__(self, limits: EngineLimits) -> None:
        self.prompts = 0
        self._generated = 0
        self._sum = 0.0
        self._counts = [0] * len(_EDGES)
        self._facts = {"num_gpu_blocks": str(limits.kv_blocks), "block_size": str(limits.block_size)}

    def observe(self, prompt_tokens: int, decodes: int) -> None:
        """vLLM counts a prompt in the step that computes its last token, which yields an output token."""
        tokens = prompt_tokens + decodes
        self._generated += decodes
        self._sum += tokens
        self._counts[bisect_left(_EDGES, tokens)] += 1

    def page(self, kv_usage: float) -> PageTotals:
        requests = HistogramTotals(_ONE, (float(self.prompts),), 0.0)
        return PageTotals(
            born={},
            gauges={"kv_usage": kv_usage},
            counters={"generation_tokens": float(self._generated + self.prompts)},
            finished={},
            histograms={
                "steps": HistogramTotals(_EDGES, tuple(map(float, accumulate(self._counts))), self._sum),
                "prompts": requests,
                "answers": requests,
            },
            facts=self._facts,
            missing=frozenset(),
            series=1,
        )
