"""One vLLM engine that generates what each line of its input asks for; runs in vLLM's interpreter.

    scheduler_worker.py MODEL
    -> {"vllm": "0.32.0", "class_us": 0.4, "async": false}
    {"seed": 1, "requests": 64, "tokens": 32, "temperature": 0.0, "hot": 1}
    -> {"schedule": "HotStep", "wall_s": 0.9, "cpu_s": 0.8, "tokens": 2048, "outputs": [[1367, …], …]}

The engine is in this process, with one thread for the model, so its CPU time is that of the process. Its
scheduler is an object of vLLM's own class, of which flettner's replaces one method; `hot` 0: it does not.
"""

import json
import os
import random
import sys
from time import perf_counter, process_time
from typing import Any

import vllm
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from flettner.flettner_vllm.scheduler import HotStep, find_knobs

LEAST_PROMPT, MOST_PROMPT = 8, 96
CALLS = 200_000


def main() -> None:
    model = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's log
    llm = LLM(
        model=model,
        max_model_len=512,
        max_num_seqs=16,
        enforce_eager=True,
        seed=0,
        enable_prefix_caching=False,
        scheduler_cls="flettner_vllm.scheduler.Scheduler",
    )
    vocabulary = llm.get_tokenizer().vocab_size
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    step = scheduler.schedule
    print(json.dumps(describe(llm)), file=answers, flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        if wanted.pop("hot"):
            scheduler.schedule = step
        else:
            vars(scheduler).pop("schedule", None)
        result = {"schedule": type(scheduler.schedule).__name__, **generate(llm, vocabulary, **wanted)}
        print(json.dumps(result), file=answers, flush=True)


def describe(llm: LLM) -> dict[str, object]:
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    return {
        "vllm": vllm.__version__,
        "class_us": time_class(scheduler),
        "async": bool(engine.vllm_config.scheduler_config.async_scheduling),
    }


class NothingToSchedule:
    """A scheduler of this release whose steps cost nothing."""

    def __init__(self, scheduler: Any) -> None:  # noqa: ANN401 - of this release of vLLM
        self.max_num_active_reqs = scheduler.max_num_active_reqs

    def schedule(self) -> None:
        """Decide nothing."""


def time_class(scheduler: Any) -> float:  # noqa: ANN401
    """Microseconds that flettner's class adds to a step."""
    stub = NothingToSchedule(scheduler)
    step = HotStep(stub, find_knobs(scheduler))
    spent_s = []
    for schedule in (stub.schedule, step):
        begin_s = process_time()
        for _ in range(CALLS):
            schedule()
        spent_s.append(process_time() - begin_s)
    return round(1e6 * (spent_s[1] - spent_s[0]) / CALLS, 3)


def generate(
    llm: LLM, vocabulary: int, *, seed: int, requests: int, tokens: int, temperature: float
) -> dict[str, object]:
    lot = random.Random(seed)  # noqa: S311 - prompts
    prompts = [
        TokensPrompt(
            prompt_token_ids=lot.choices(range(3, vocabulary), k=lot.randint(LEAST_PROMPT, MOST_PROMPT))
        )
        for _ in range(requests)
    ]
    each = [
        SamplingParams(temperature=temperature, seed=seed + n, max_tokens=tokens, ignore_eos=True)
        for n in range(requests)
    ]
    wall_s, cpu_s = perf_counter(), process_time()
    ended = llm.generate(prompts, each, use_tqdm=False)
    wall_s, cpu_s = perf_counter() - wall_s, process_time() - cpu_s
    outputs = [list(output.outputs[0].token_ids) for output in ended]
    return {"wall_s": wall_s, "cpu_s": cpu_s, "tokens": sum(map(len, outputs)), "outputs": outputs}


if __name__ == "__main__":
    main()
