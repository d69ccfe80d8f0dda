"""The clock of the log tells what the elapsed times of vLLM's steps leave out."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from flettner.performance_model.fit import expected_s, fit_law
from flettner.performance_model.hardware_prior import fit_with_prior, rows_of_log
from flettner.performance_model.iteration_log import StepRecord, parse_iterations
from flettner.performance_model.log_clock import LEAST_S, add_unlogged, busy_spans, unlogged
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.work_windows import windows_of_steps, with_kv_read
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.unit.performance_model.logged_steps import KV_TOKENS, LAW, as_line, steps

HOST = StepLaw(step_us=1100.0, token_us=27.0, sequence_us=80.0)  # real vLLM 0.32, a tiny model on a CPU


def read_log(
    recorded: Sequence[StepRecord],
    seconds: Callable[[StepRecord], float],
    elapsed: Callable[[StepRecord], float],
    idle_s: float = 0.0,
    busy: int = 100,
) -> list[StepRecord]:
    """What the log says of steps that took and show such times.

    After `busy` steps all requests have ended; the next step has none that decodes.
    """
    at_s, lines = 0.0, []
    for index, step in enumerate(recorded):
        record = step
        if index % busy == busy - 1:
            at_s += idle_s
            record = replace(step, prefills=1, prefill_tokens=50, decodes=0, decode_tokens=0)
        at_s += seconds(record)
        lines.append(as_line(index, replace(record, seconds=elapsed(record)), at_s))
    return list(parse_iterations(lines))


@pytest.mark.parametrize("idle_s", [0.0, 7.0])
def test_a_share_that_is_left_out_is_found(idle_s: float) -> None:
    """Pauses without requests are no part of a step."""
    recorded = steps(3000)

    read = read_log(recorded, lambda step: step.seconds, lambda step: 0.8 * step.seconds, idle_s)
    windows = list(windows_of_steps(read, KV_TOKENS))
    missing = unlogged(busy_spans(read, KV_TOKENS))

    assert sum(expected_s(missing, window) for window in windows) == pytest.approx(
        0.2 / 0.8 * sum(window.seconds for window in windows), rel=0.1
    )


def test_a_log_that_shows_nothing_of_a_step_still_tells_the_law() -> None:
    """vLLM waits for nothing where the worker runs in the engine's process, on the CPU."""
    recorded = sorted(steps(12_000), key=lambda step: step.decodes)  # a load that grows

    read = read_log(
        recorded, lambda step: HOST.seconds(step.tokens, step.sequences, 0), lambda _: 9e-5, busy=1000
    )
    windows = add_unlogged(windows_of_steps(read, KV_TOKENS), unlogged(busy_spans(read, KV_TOKENS)))
    law = fit_law(windows, draws=0).law

    assert law.token_us == pytest.approx(HOST.token_us, rel=0.1)
    for tokens, sequences in ((4, 4), (30, 30), (60, 60), (540, 30)):
        assert law.seconds(tokens, sequences, 0) == pytest.approx(HOST.seconds(tokens, sequences, 0), rel=0.1)


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_all_steps_take_alike_is_not_laid_on_their_sequences(seed: int) -> None:
    """On traffic that stays alike both fit the spans, and other batches would be predicted wrong."""
    recorded, host_s = steps(3000, seed=seed, noise=0.03), 0.003

    read = read_log(recorded, lambda step: step.seconds + host_s, lambda step: step.seconds)
    missing = unlogged(busy_spans(read, KV_TOKENS))

    assert missing.token_us == missing.sequence_us == 0.0
    assert missing.step_us == pytest.approx(1e6 * host_s, rel=0.4)  # of steps of 22 ms: 5 %


def test_elapsed_times_that_hide_much_of_a_step_are_not_used() -> None:
    """Asynchronous scheduling: the wait for a step is short where the one before it was long."""
    recorded = steps(3000)
    case = ServeConfig(setting={}, card=find_gpu("RTX 4090"), model=find_model("meta-llama/Llama-3.1-8B"))

    read = read_log(recorded, lambda step: step.seconds, lambda step: 2e-4 if step.prefills else 0.01)
    spans = list(busy_spans(read, KV_TOKENS))
    rows, kind = rows_of_log(case, list(windows_of_steps(read, KV_TOKENS)), spans, 0.0, on_gpu=True)
    law = fit_with_prior(case, rows, kind=kind, draws=0).law

    assert kind == "clock"
    for tokens, sequences in ((30, 30), (1030, 30)):
        expected = LAW.seconds(tokens, sequences, 20_000)
        assert law.seconds(tokens, sequences, 20_000) == pytest.approx(expected, rel=0.1)
    unknown = replace(case, card=None)
    assert (
        rows_of_log(unknown, list(windows_of_steps(read, KV_TOKENS)), spans, 0.0, on_gpu=False)[1] == "steps"
    )


@pytest.mark.parametrize(
    ("count", "busy", "rows"),
    [(200, 3000, range(3, 8)), (1200, 33, range(1, 2)), (60, 3000, range(1))],
    ids=["some exact seconds", "only short bursts", "too little"],
)
def test_a_log_that_hides_its_steps_is_not_taken_at_its_word(count: int, busy: int, rows: range) -> None:
    """It shows a hundredth of a step: fitted to that, each setting would look a hundred times as fast."""
    case = ServeConfig(setting={}, card=find_gpu("RTX 4090"), model=find_model("meta-llama/Llama-3.1-8B"))
    told = replace(case, log=("INFO [vllm.py:1042] Asynchronous scheduling is enabled.",))
    recorded = steps(3000)[:count]

    read = read_log(recorded, lambda step: step.seconds, lambda step: step.seconds / 100, 7.3, busy)
    windows, spans = list(windows_of_steps(read, KV_TOKENS)), list(busy_spans(read, KV_TOKENS))
    found, kind = rows_of_log(told, windows, spans, 0.0, on_gpu=True)

    assert kind == "clock"
    assert len(found) in rows
    if found:
        law = fit_with_prior(told, found, kind=kind, draws=0).law
        expected = LAW.seconds(30, 30, 20_000)
        assert law.seconds(30, 30, 20_000) == pytest.approx(expected, rel=0.25)


def test_a_log_without_a_clock_is_taken_at_its_word() -> None:
    case = ServeConfig(setting={}, card=find_gpu("RTX 4090"), model=find_model("meta-llama/Llama-3.1-8B"))
    windows = list(windows_of_steps(steps(300), KV_TOKENS))

    assert rows_of_log(case, windows, [], 0.0, on_gpu=True) == (windows, "steps")


def test_a_minute_in_which_the_server_stood_still_is_left_out() -> None:
    case = ServeConfig(setting={}, card=find_gpu("RTX 4090"), model=find_model("meta-llama/Llama-3.1-8B"))
    stalled = [replace(step, seconds=60.0) if at == 1500 else step for at, step in enumerate(steps(3000))]

    rows = [
        rows_of_log(case, [], list(busy_spans(read, KV_TOKENS)), 0.0, on_gpu=True)[0]
        for read in (
            read_log(recorded, lambda step: step.seconds, lambda _: 0.01)
            for recorded in (steps(3000), stalled)
        )
    ]

    assert max(row.seconds for row in rows[1]) < 10
    assert len(rows[1]) > 0.8 * len(rows[0])


def test_a_log_without_the_kv_cache_has_what_the_trace_says_of_it() -> None:
    silent = [replace(step, kv_share=None) for step in steps(300)]
    windows, shown = (list(windows_of_steps(recorded, KV_TOKENS)) for recorded in (silent, steps(300)))

    assert [window.kv_read for window in with_kv_read(windows, 500.0)] == [
        500.0 * window.sequences for window in windows
    ]
    assert with_kv_read(shown, 500.0) == shown


def test_nothing_is_left_out_where_the_elapsed_times_fill_the_clock() -> None:
    read = read_log(steps(3000), lambda step: step.seconds, lambda step: step.seconds)
    windows = list(windows_of_steps(read, KV_TOKENS))

    missing = unlogged(busy_spans(read, KV_TOKENS))

    assert sum(expected_s(missing, window) for window in windows) < 0.005 * sum(
        window.seconds for window in windows
    )


def test_a_log_without_a_clock_leaves_nothing_out() -> None:
    lines = [as_line(i, step).partition("] ")[2] for i, step in enumerate(steps(1000))]

    spans = list(busy_spans(list(parse_iterations(lines)), KV_TOKENS))

    assert spans == []
    assert unlogged(spans).seconds(1, 1, 0) == 0.0


def test_a_few_seconds_of_clock_tell_nothing() -> None:
    recorded = steps(3000)
    count = next(at for at in range(1, 3000) if sum(step.seconds for step in recorded[:at]) > LEAST_S - 2)

    read = read_log(recorded[:count], lambda step: step.seconds, lambda step: 0.8 * step.seconds)

    assert unlogged(busy_spans(read, KV_TOKENS)).seconds(1, 1, 0) == 0.0


def test_a_clock_that_is_set_back_is_left_out() -> None:
    """Nothing else tells that the log goes on a month later, or in another time zone."""
    read = read_log(steps(3000), lambda step: step.seconds, lambda step: step.seconds)
    middle = len(read) // 2
    back = [*read[:middle], *(replace(step, logged_s=(step.logged_s or 0) - 3600) for step in read[middle:])]

    assert all(span.wall_s >= 0 for span in busy_spans(back, KV_TOKENS))
    assert len(list(busy_spans(back, KV_TOKENS))) > len(list(busy_spans(read, KV_TOKENS))) - 3
