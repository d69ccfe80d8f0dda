"""The law of step time is found again in vLLM's log and in its histograms."""

from dataclasses import replace
from itertools import pairwise

import pytest

from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import LargestStep
from flettner.performance_model.fit import expected_s, fit_law
from flettner.performance_model.hardware_prior import scaled_prior
from flettner.performance_model.iteration_log import StepRecord, parse_iterations
from flettner.performance_model.least_squares import solve_non_negative
from flettner.performance_model.step_law import UncertainLaw, read_law, widen, write_law
from flettner.performance_model.work_windows import WorkWindow, window_between, windows_of_steps
from flettner.vllm_facts.metrics.page_totals import HistogramTotals, PageTotals
from flettner.vllm_facts.serve_config import ServeConfig
from tests.unit.performance_model.logged_steps import KV_TOKENS, LAW, as_line, steps


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_law_is_found_in_a_log(noise: float) -> None:
    recorded = steps(3000, noise=noise)
    read = list(parse_iterations(["INFO: ready", *(as_line(i, step) for i, step in enumerate(recorded))]))

    law = fit_law(list(windows_of_steps(read, KV_TOKENS))).law

    assert [step.prefill_tokens for step in read] == [step.prefill_tokens for step in recorded]
    assert law.knee == LAW.knee
    assert law.step_us == pytest.approx(LAW.step_us, rel=0.03)
    assert law.token_us == pytest.approx(LAW.token_us, rel=0.03)
    assert law.kv_read_us == pytest.approx(LAW.kv_read_us, rel=0.15)


def test_the_largest_step_of_a_fit_is_known() -> None:
    recorded = steps(300)

    largest = fit_law(list(windows_of_steps(recorded, KV_TOKENS)), draws=0).fitted_to

    assert largest is not None
    assert largest.tokens == pytest.approx(max(step.tokens for step in recorded), rel=0.05)
    assert 30 < largest.sequences <= max(step.sequences for step in recorded)


def test_dummy_steps_are_left_out() -> None:
    line = as_line(3, steps(1)[0]).replace(" ms,", " ms (dummy),")

    assert list(parse_iterations([line])) == []


def test_a_few_hiccups_are_rejected() -> None:
    clean, disturbed = (list(windows_of_steps(steps(3000, hiccups=h), KV_TOKENS)) for h in (0, 20))

    law = fit_law(disturbed).law

    assert sum(expected_s(law, window) for window in clean) == pytest.approx(
        sum(window.seconds for window in clean), rel=0.01
    )


def test_the_draws_enclose_the_law_that_made_the_steps() -> None:
    fit = fit_law(list(windows_of_steps(steps(3000, noise=0.05), KV_TOKENS)))

    for name in ("step_us", "token_us"):
        low, high = fit.interval(name, 1.0)
        assert low <= getattr(LAW, name) * 1.02 and high >= getattr(LAW, name) * 0.98  # noqa: PT018


def test_steps_that_are_all_alike_are_refused() -> None:
    alike = WorkWindow(seconds=0.2, steps=0, sizes=((500.0, 10.0),), sequences=10, kv_read=0)

    with pytest.raises(PredictionInputError, match="too alike"):
        fit_law([alike] * 20)
    with pytest.raises(PredictionInputError, match="at least 8"):
        fit_law([alike] * 7)


def page(recorded: list[StepRecord]) -> PageTotals:
    edges = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, float("inf"))
    tokens = [step.tokens for step in recorded]
    sizes = HistogramTotals(
        edges, tuple(float(sum(n <= edge for n in tokens)) for edge in edges), sum(tokens)
    )
    prompts = HistogramTotals((float("inf"),), (float(sum(step.prefills for step in recorded)),), 0.0)
    return PageTotals(
        born={},
        gauges={"kv_usage": 0.5},
        counters={"generation_tokens": float(sum(step.decodes for step in recorded))},
        finished={},
        histograms={"steps": sizes, "prompts": prompts, "answers": prompts},
        facts={"num_gpu_blocks": str(KV_TOKENS // 16), "block_size": "16"},
        missing=frozenset(),
        series=3,
    )


def test_histograms_tell_the_times_of_other_windows() -> None:
    recorded = [replace(step, kv_share=0.5) for step in steps(6000, seed=2)]
    times = [LAW.seconds(step.tokens, step.sequences, KV_TOKENS // 2) for step in recorded]
    cuts = list(range(0, 6001, 150))
    windows = [
        window_between(page(recorded[:begin]), page(recorded[:end]), sum(times[begin:end]), 2048)
        for begin, end in pairwise(cuts)
    ]
    measured = [window for window in windows if window is not None]

    law = fit_law(measured[:30]).law

    assert len(measured) == 40
    for window in measured[30:]:
        assert expected_s(law, window) == pytest.approx(window.seconds, rel=0.05)


def test_no_coefficient_is_negative() -> None:
    rows = [(1.0, float(x)) for x in range(10)]

    solution, left = solve_non_negative(rows, [10.0 - x for x in range(10)])

    assert solution == pytest.approx([5.5, 0.0])
    assert left == pytest.approx(82.5)


def test_a_written_law_is_read_back() -> None:
    fitted_to = LargestStep(tokens=2048, sequences=31.5)
    drawn = widen(LAW, common=0.1, each=0.1, count=3, seed=1, source="here")
    law = replace(drawn, fitted_to=fitted_to, wait_error=0.15)

    back = read_law(write_law(law))

    assert back.law == LAW
    assert back.source == "here"
    assert back.fitted_to == fitted_to
    assert back.wait_error == 0.15
    assert [draw.token_us for draw in back.draws] == pytest.approx(
        [draw.token_us for draw in law.draws], rel=1e-5
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "f: not JSON"),
        ("{}", 'f: not a law of step time: it must have "flettner_step_law": 1'),
        ('{"flettner_step_law": 1}', "f: law: must be an object"),
        ('{"flettner_step_law": 1, "law": {"step_us": 0}}', "f: law: step_us must be above 0"),
        ('{"flettner_step_law": 1, "law": {"step_us": 1, "knee": -1}}', "f: law: knee -1: must be a number"),
        ('{"flettner_step_law": 1, "law": {"step_us": 1, "x": 1}}', "f: law: unknown coefficient x"),
        ('{"flettner_step_law": 1, "law": {"step_us": 1}, "draws": [3]}', "f: draws[0]: must be an object"),
        (
            '{"flettner_step_law": 1, "law": {"step_us": 1}, "fitted_to": {"tokens": 0}}',
            "f: fitted_to: must have tokens and sequences",
        ),
        (
            '{"flettner_step_law": 1, "law": {"step_us": 1}, "wait_error": -1}',
            "f: wait_error -1: must be a number, at least 0",
        ),
    ],
)
def test_a_faulty_law_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(PredictionInputError) as caught:
        read_law(text, "f")

    assert str(caught.value).startswith(complaint)


def test_an_interval_without_draws_is_the_law() -> None:
    assert UncertainLaw(law=LAW).interval("token_us") == (88.0, 88.0)


def test_a_prior_decides_what_the_windows_do_not_tell() -> None:
    """Steps without prompts stay below the knee: they do not tell what a token costs."""
    decoding = [step for step in steps(3000, noise=0.03) if not step.prefills]
    windows = list(windows_of_steps(decoding, KV_TOKENS))
    near = replace(LAW, knee=112, token_us=100.0, kv_read_us=0.2, attention_us=0.005)

    law = fit_law(windows, draws=0, prior=near).law

    assert law.token_us == pytest.approx(100.0)
    assert law.attention_us == pytest.approx(0.005)
    assert law.knee == 112
    assert law.kv_read_us == pytest.approx(LAW.kv_read_us, rel=0.15)  # which the windows do tell


def test_what_the_windows_do_not_tell_is_as_uncertain_as_the_prior() -> None:
    """Eight sequences all the time: the cost of one is in that of a step."""
    eight = [replace(step, decodes=8, decode_tokens=8, kv_share=0.1) for step in steps(3000)]
    timed = [
        replace(step, seconds=LAW.seconds(step.tokens, step.sequences, KV_TOKENS // 10)) for step in eight
    ]
    windows = list(windows_of_steps(timed, KV_TOKENS))
    near = replace(LAW, sequence_us=20.0, attention_us=0.005)

    fit = fit_law(windows, prior=near)

    assert 15 < fit.law.sequence_us < 60
    low, high = fit.interval("sequence_us")
    assert high > 3 * low
    seen, unseen = (sorted(draw.seconds(size, size, 100 * size) for draw in fit.draws) for size in (8, 64))
    assert seen[-1] < 1.05 * seen[0]
    assert unseen[-1] > 1.1 * unseen[0]


def test_the_launch_of_steps_beyond_the_graphs_is_found() -> None:
    """All steps of more than 512 tokens take 120 ms at least, as long as those of 1,260."""
    slow = replace(LAW, launch_tokens=1260.0)
    timed = [
        replace(
            step,
            seconds=slow.seconds(
                step.tokens,
                step.sequences,
                round(max(0, (step.kv_share or 0) * KV_TOKENS - step.prefill_tokens)),
            ),
        )
        for step in steps(3000)
    ]
    windows = list(windows_of_steps(timed, KV_TOKENS))

    fit = fit_law(windows, prior=LAW, launch_us=60_000.0)

    assert fit.law.launch_tokens == pytest.approx(1260, rel=0.15)
    assert fit.law.seconds(600, 20, 20_000) == pytest.approx(slow.seconds(600, 20, 20_000), rel=0.1)
    assert fit_law(windows, prior=LAW, draws=0).law.launch_tokens == 0.0
    assert slow.seconds(512, 20, 20_000) == LAW.seconds(512, 20, 20_000)
    assert slow.seconds(600, 20, 20_000) == slow.seconds(1260, 20, 20_000)


def test_a_few_windows_of_another_setting_are_no_outliers() -> None:
    alike = [step for step in steps(3000) if step.decodes <= 20]
    other = [step for step in steps(6000, seed=2) if step.decodes > 50]
    windows = list(windows_of_steps([*alike[:600], *other[:150]], KV_TOKENS))

    law = fit_law(windows, draws=0, prior=replace(LAW, sequence_us=400.0)).law

    assert law.seconds(55, 55, 20_000) == pytest.approx(LAW.seconds(55, 55, 20_000), rel=0.03)


def test_histograms_of_an_unknown_gpu_tell_the_cost_of_a_long_prompt() -> None:
    """Sums over windows with alike mixes of steps: without any prior the knee is lost in them."""
    recorded = [replace(step, kv_share=0.5) for step in steps(6000, seed=2, noise=0.06)]
    times = [step.seconds for step in recorded]
    windows = [
        window_between(page(recorded[:begin]), page(recorded[:end]), sum(times[begin:end]), 2048)
        for begin, end in pairwise(range(0, 6001, 150))
    ]
    measured = [window for window in windows if window is not None]

    law = fit_law(measured, draws=0, prior=scaled_prior(ServeConfig(setting={}), measured)).law

    assert 64 <= law.knee <= 128
    assert law.seconds(2048, 20, 20_000) == pytest.approx(LAW.seconds(2048, 20, 20_000), rel=0.15)


def test_a_wrong_prior_does_not_outvote_the_windows() -> None:
    windows = list(windows_of_steps(steps(3000, noise=0.03), KV_TOKENS))
    far = replace(LAW, step_us=2 * LAW.step_us, token_us=2 * LAW.token_us, kv_read_us=2 * LAW.kv_read_us)

    law = fit_law(windows, draws=0, prior=far).law

    assert law.step_us == pytest.approx(LAW.step_us, rel=0.05)
    assert law.token_us == pytest.approx(LAW.token_us, rel=0.05)
