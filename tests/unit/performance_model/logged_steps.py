"""Steps of an engine with a known law, and their lines in vLLM's log."""

from random import Random

from flettner.performance_model.iteration_log import StepRecord
from flettner.performance_model.step_law import StepLaw

LAW = StepLaw(step_us=17_000, knee=96, token_us=88.0, sequence_us=40.0, kv_read_us=0.14)
KV_TOKENS = 40_000


def steps(count: int, *, seed: int = 1, noise: float = 0.0, hiccups: int = 0) -> list[StepRecord]:
    """Decode steps with a chunk of a prompt in every fifth; `hiccups` of them last a second longer."""
    random = Random(seed)  # noqa: S311 - reproducible, not secret
    slow = set(random.sample(range(count), hiccups))
    made = []
    for index in range(count):
        decodes = random.randint(1, 60)
        share = random.uniform(0.1, 0.9)
        chunk = random.randint(16, 2048) if random.random() < 0.2 else 0
        seconds = LAW.seconds(
            decodes + chunk, decodes + bool(chunk), round(max(0, share * KV_TOKENS - chunk))
        )
        made.append(
            StepRecord(
                seconds=seconds * random.lognormvariate(0, noise) + (index in slow),
                prefills=int(bool(chunk)),
                prefill_tokens=chunk,
                decodes=decodes,
                decode_tokens=decodes,
                kv_share=share,
            )
        )
    return made


def as_line(index: int, step: StepRecord, at_s: float = 0.0) -> str:
    """The line of vLLM 0.32, v1/metrics/loggers.py: _log_iteration_details."""
    clock = f"11-23 07:{int(at_s) // 60:02}:{int(at_s) % 60:02}"
    return (
        f"INFO {clock} [loggers.py:199] Engine 000: Iteration({index}): "
        f"{step.prefills} context requests, {step.prefill_tokens} context tokens, "
        f"{step.decodes} generation requests, {step.decode_tokens} generation tokens, "
        f"iteration elapsed time: {1000 * step.seconds:.2f} ms, GPU KV cache usage: {step.kv_share or 0:.1%}"
    )
