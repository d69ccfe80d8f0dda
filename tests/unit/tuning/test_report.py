"""What the report of a run says beside its numbers."""

from dataclasses import replace
from pathlib import Path

from flettner.performance_model.outcome import Goals
from flettner.tools.tuning.model_search import PointForecast
from flettner.tools.tuning.report import as_html, as_text, warnings
from flettner.tools.tuning.run import TuningResult
from flettner.tools.tuning.session import TuningPlan
from flettner.tools.tuning.space import build_space
from flettner.tools.tuning.trials import TuningTrial
from flettner.vllm_facts.shell_command.serve_command import parse_command
from tests.support.learned import KV_TOKENS, MODEL, deployment, requests_at

GIVEN = (
    {"max_num_seqs": 16, "enforce_eager": True},
    {"max_num_seqs": 4096, "max_num_batched_tokens": 256},
)
SPACE = build_space(deployment({"max_num_seqs": 8}), KV_TOKENS, GIVEN)
RESULT = TuningResult(
    plan=TuningPlan(
        command=parse_command(["vllm", "serve", MODEL, "--max-num-seqs", "8"]),
        trace=requests_at(1.0, seconds=60.0),
        goals=Goals(ttft_s=1.0),
        out=Path("out"),
        budget_s=3600.0,
        logs_steps=True,
    ),
    search="model",
    space=SPACE,
    trials=(TuningTrial(point=SPACE.points[0], changes={}, why="it did not start", log="server-000.log"),),
    verdict=None,
    law=None,
    forecasts=[PointForecast(point=point, goodput=1.0, gain=0.0, noise=0.0) for point in SPACE.points],
)


def test_settings_that_are_left_out_and_effects_that_are_not_predicted_are_named() -> None:
    _, refused, unknown = warnings(RESULT)

    assert refused.startswith(
        "Settings that were left out: 1, mostly for this reason: max_num_batched_tokens"
    )
    assert unknown.startswith("The effect of enforce_eager is not predicted")
    assert refused in " ".join(as_text(RESULT).split())
    assert "The effect of enforce_eager" in as_html(RESULT)


def test_what_is_predicted_is_shown_with_its_error_and_a_legend() -> None:
    unsure = PointForecast(point=SPACE.points[0], goodput=1.0, gain=0.8, noise=1.0)
    tried = replace(RESULT.trials[0], why="", good="10", predicted=0.8)
    page = as_html(replace(RESULT, forecasts=[*RESULT.forecasts, unsure], trials=(tried,)))

    assert "predicted is +80.0 points, standard error 100.0." in page
    assert "The line at a bar is what was predicted." in page
    assert "The line at a bar" not in as_html(RESULT)


def test_without_a_model_nothing_is_said_of_predictions() -> None:
    assert not [
        line for line in warnings(replace(RESULT, search="grid", forecasts=())) if "predicted" in line
    ]


def test_a_failed_trial_is_told_with_the_path_of_its_log() -> None:
    assert "it did not start (out/server-000.log)" in warnings(RESULT)[0]
