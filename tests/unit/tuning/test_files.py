"""The files of other tuners, and the trials that a later run goes on from."""

from pathlib import Path

import pytest

from flettner.agent.domain.errors import ConfigError
from flettner.performance_model.outcome import Goals
from flettner.performance_model.trace import TraceRequest
from flettner.tools.cli.tune import read_params, write_params
from flettner.tools.tuning.auto_tune import read_variables
from flettner.tools.tuning.trials import TrialFile, TuningTrial

TRACE = [TraceRequest(arrival_s=0.5, prompt_tokens=10, output_tokens=5)]
GOALS = Goals(ttft_s=1.0)


def test_both_forms_of_a_sweeps_parameters_are_read(tmp_path: Path) -> None:
    listed, named = tmp_path / "list.json", tmp_path / "named.json"
    listed.write_text('[{"max-num-seqs": 8}, {"max_num_seqs": 16, "_benchmark_name": "two"}]')
    named.write_text('{"one": {"--max-num-seqs": 8}, "two": {"max_num_seqs": 16}}')

    expected = [{"max_num_seqs": 8}, {"max_num_seqs": 16}]
    assert read_params(listed, "--serve-params") == expected
    assert read_params(named, "--serve-params") == expected


def test_written_parameters_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "serve_params.json"
    points = [{}, {"max_num_seqs": 8, "watermark": 0.02}]
    write_params(file, points)

    assert read_params(file, "--serve-params") == points


def test_a_sweep_of_nested_values_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nested.json"
    file.write_text('[{"compilation_config": {"level": 3}}]')

    with pytest.raises(ConfigError, match="compilation_config: must be text, a number"):
        read_params(file, "--serve-params")


def test_the_variables_of_auto_tune_become_a_command_a_load_and_a_grid(tmp_path: Path) -> None:
    script = tmp_path / "auto_tune.sh"
    script.write_text(
        '#!/bin/bash\nMODEL="Qwen/Qwen3-8B"\nTP=2\nINPUT_LEN=2000\nOUTPUT_LEN=20\nMAX_MODEL_LEN=4096\n'
        'MIN_CACHE_HIT_PCT=60\nMAX_LATENCY_ALLOWED_MS=500\nNUM_SEQS_LIST="64 128"\n'
        'NUM_BATCHED_TOKENS_LIST="1024 2048"\nbest_throughput=0\n'
    )
    variables = read_variables(script)

    assert variables.command[:5] == ("vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2")
    assert (variables.input_len, variables.prefix_len, variables.output_len, variables.e2e_s) == (
        800,
        1200,
        20,
        0.5,
    )
    assert [tuple(point.values()) for point in variables.points] == [
        (64, 1024),
        (64, 2048),
        (128, 1024),
        (128, 2048),
    ]


def test_the_assignments_of_a_script_for_batches_are_read(tmp_path: Path) -> None:
    """Values that the environment may override, and comments behind them."""
    script = tmp_path / "auto_tune.sh"
    script.write_text(
        'BASE=${BASE:-"$SCRIPT_DIR/../../.."}\nMODEL=${MODEL:-"Qwen/Qwen3-8B"}\nTP=${TP:-2}\n'
        "INPUT_LEN=1800 # tokens\nexport OUTPUT_LEN=${OUTPUT_LEN:-20}  # tokens\n"
        "DOWNLOAD_DIR=${DOWNLOAD_DIR:-\"\"}\nNUM_SEQS_LIST=${NUM_SEQS_LIST:-'64 128'}\n"
        'NUM_BATCHED_TOKENS_LIST="512"\nMAX_LATENCY_ALLOWED_MS=100000000000 # very large\n'
    )
    variables = read_variables(script)

    assert variables.command[2:5] == ("Qwen/Qwen3-8B", "--tensor-parallel-size", "2")
    assert "--download-dir" not in variables.command
    assert (variables.input_len, variables.output_len, variables.e2e_s) == (1800, 20, None)
    assert [tuple(point.values()) for point in variables.points] == [(64, 512), (128, 512)]


def test_a_variable_whose_value_cannot_be_read_is_named(tmp_path: Path) -> None:
    script = tmp_path / "auto_tune.sh"
    script.write_text("TP=2\nNUM_SEQS_LIST=$(seq 8 16)\n")

    with pytest.raises(ConfigError, match="the value of NUM_SEQS_LIST cannot be read"):
        read_variables(script)


def trial(seqs: int, good: str = "1", *, number: int = 0) -> TuningTrial:
    changes = {"max_num_seqs": seqs}
    return TuningTrial(point=changes, changes=changes, good=good, round=number)


def test_a_later_run_knows_the_trials_but_not_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    first = TrialFile(file, ["vllm", "serve", "m"], TRACE, GOALS)
    first.add(trial(8))
    first.add(trial(16, "0"))
    file.write_text(file.read_text() + '{"point": {"max_num')

    again = TrialFile(file, ["vllm", "serve", "m"], TRACE, GOALS)
    assert again.trials == first.trials


@pytest.mark.parametrize("command", [["vllm", "serve", "other"], ["vllm", "serve", "m", "--port", "1"]])
def test_trials_of_another_command_are_refused(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "trials.jsonl"
    TrialFile(file, ["vllm", "serve", "m"], TRACE, GOALS)

    with pytest.raises(ConfigError, match="another command, load or objective"):
        TrialFile(file, command, TRACE, GOALS)


def test_a_point_counts_with_the_mean_of_its_rounds(tmp_path: Path) -> None:
    file = TrialFile(tmp_path / "trials.jsonl", ["vllm"], TRACE, GOALS)
    for good, number in (("1", 0), ("0", 1)):
        file.add(trial(8, good, number=number))
    file.add(trial(16, ""))

    assert [point.goodput for point in file.tried()] == [0.5, None]
