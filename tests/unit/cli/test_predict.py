"""`flettner predict`: numbers with bands, headroom and better settings."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flettner.performance_model.extrapolation import LargestStep
from flettner.performance_model.iteration_log import parse_iterations
from flettner.performance_model.step_law import StepLaw, UncertainLaw, write_law
from flettner.performance_model.trace import TraceRequest, write_trace
from flettner.performance_model.work_windows import windows_of_steps
from tests.unit.cli.conftest import runs

Predict = Callable[..., tuple[int, str, str]]
SERVE = ("vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len", "8192", "--max-num-seqs")
LAW = StepLaw(step_us=18_000, knee=111, token_us=88.0, sequence_us=40.0, kv_read_us=0.14)


@pytest.fixture
def predict(capsys: pytest.CaptureFixture[str]) -> Predict:
    return runs(capsys, "predict")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    random, at, made = Random(1), 0.0, []  # noqa: S311 - reproducible, not secret
    while (at := at + random.expovariate(2.0)) < 120.0:
        made.append(
            TraceRequest(
                arrival_s=at, prompt_tokens=random.randint(10, 900), output_tokens=random.randint(1, 300)
            )
        )
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(write_trace(made)))
    return str(path)


@pytest.fixture
def law(tmp_path: Path) -> str:
    path = tmp_path / "law.json"
    path.write_text(write_law(UncertainLaw(law=LAW, source="measured here")))
    return str(path)


def predict_json(predict: Predict, *argv: str) -> dict[str, Any]:
    status, out, err = predict("--json", *argv)
    assert (status, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_price_adds_the_cost(predict: Predict, trace: str, law: str) -> None:
    """3.6 for each of two GPUs an hour are 0.002 a second."""
    given = ("--trace", trace, "--law", law, "--ttft", "1s", "--gpu", "RTX 4090", "--gpu-hour", "3.6")
    split = ("--", *SERVE, "64", "-tp", "2")

    predicted = predict_json(predict, *given, *split)["predicted"]

    assert predicted["cost_per_million_tokens"]["value"] == pytest.approx(
        1e6 * 0.002 / predicted["tokens_per_s"]["value"]
    )
    assert predicted["cost_per_thousand_good_requests"]["value"] == pytest.approx(
        1e3 * 0.002 / predicted["goodput_per_s"]["value"]
    )
    assert "tokens_per_joule" not in predicted
    assert "cost of a million tokens" in predict(*given, *split)[1]


@pytest.mark.parametrize("price", ["0", "-1", "nan", "dear"])
def test_what_is_no_price_is_refused(predict: Predict, trace: str, price: str) -> None:
    assert predict("--trace", trace, "--gpu-hour", price, "--", *SERVE, "64")[0] == 2


def test_the_capacity_has_a_band(predict: Predict, trace: str, law: str) -> None:
    given = (
        "--trace",
        trace,
        "--law",
        law,
        "--ttft",
        "1s",
        "--gpu",
        "RTX 4090",
        "--capacity",
        "--",
        *SERVE,
        "8",
    )

    row = predict_json(predict, *given)

    assert row["capacity"]["value"] == row["headroom"]["rate_per_s"]
    assert row["capacity"]["low"] <= row["capacity"]["value"] <= row["capacity"]["high"]
    band = f"({row['capacity']['low']:.2f} to {row['capacity']['high']:.2f}) requests a second"
    assert band in " ".join(predict(*given)[1].split())


def test_the_capacity_needs_an_objective(predict: Predict, trace: str) -> None:
    assert predict("--trace", trace, "--capacity", "--", *SERVE, "8")[0] == 2


def search_from(seqs: str, trace: str, law: str) -> tuple[str, ...]:
    given = ("--trace", trace, "--law", law, "--gpu", "RTX 4090", "--ttft", "1s", "--search")
    return (*given, "--", *SERVE, seqs)


def test_numbers_come_with_bands(predict: Predict, trace: str) -> None:
    status, out, err = predict("--trace", trace, "--gpu", "RTX 4090", "--", *SERVE, "64")

    assert (status, err) == (0, "")
    assert "step times: prior for RTX 4090." in out
    assert "80 % of draws" in out
    assert "TTFT, 90 %" in out
    assert "objectives" not in out


def test_steps_far_beyond_those_of_the_law_are_named(predict: Predict, trace: str, tmp_path: Path) -> None:
    path = tmp_path / "narrow.json"
    path.write_text(write_law(UncertainLaw(law=LAW, fitted_to=LargestStep(tokens=2048, sequences=4))))

    status, out, _ = predict("--trace", trace, "--law", str(path), "--gpu", "RTX 4090", "--", *SERVE, "64")

    assert status == 0
    assert "sequences are predicted from steps of at most 4" in " ".join(out.split())


def test_objectives_add_the_headroom(predict: Predict, trace: str, law: str) -> None:
    argv = ("--trace", trace, "--law", law, "--gpu", "RTX 4090", "--ttft", "1s", "--itl", "50ms")
    small, large = (predict_json(predict, *argv, "--", *SERVE, seqs) for seqs in ("8", "64"))

    assert small["law"]["source"] == "measured here"
    assert small["headroom"]["rate_per_s"] < large["headroom"]["rate_per_s"]
    assert small["predicted"]["attainment"]["value"] < large["predicted"]["attainment"]["value"]


def test_the_search_prints_a_command(predict: Predict, trace: str, law: str) -> None:
    argv = search_from("4", trace, law)
    status, out, _ = predict(*argv)
    changes = predict_json(predict, *argv)["search"]["changes"]

    assert status == 0
    assert list(changes) == ["max_num_seqs"]
    assert out.endswith(f"--max-num-seqs {changes['max_num_seqs']}\n")


def test_the_search_says_when_there_is_nothing_to_gain(predict: Predict, trace: str, law: str) -> None:
    argv = search_from("128", trace, law)

    assert "Nothing to gain: " in predict(*argv)[1]


def test_a_faster_load_takes_longer(predict: Predict, trace: str, law: str) -> None:
    argv = ("--trace", trace, "--law", law, "--hardware", "RTX 4090")
    slow, fast, long = (
        predict_json(predict, *argv, *more, "--", *SERVE, "16")["predicted"]["e2e_p50_s"]["value"]
        for more in ((), ("--rate", "2"), ("--prompt", "x3"))
    )

    assert slow < fast
    assert slow < long


def test_the_law_and_the_kv_cache_come_from_the_log(predict: Predict, trace: str, tmp_path: Path) -> None:
    random = Random(2)  # noqa: S311 - reproducible, not secret
    lines = ["INFO GPU KV cache size: 40,000 tokens"]
    for index in range(600):
        decodes, chunk = random.randint(1, 60), random.choice([0, 0, 0, random.randint(100, 2048)])
        share = random.randint(100, 900) / 1000
        seconds = LAW.seconds(decodes + chunk, decodes + bool(chunk), round(max(0, share * 40_000 - chunk)))
        lines.append(
            f"INFO Engine 000: Iteration({index}): "
            f"{int(bool(chunk))} context requests, {chunk} context tokens, "
            f"{decodes} generation requests, {decodes} generation tokens, "
            f"iteration elapsed time: {1000 * seconds:.2f} ms, GPU KV cache usage: {share:.1%}"
        )
    log = tmp_path / "vllm.log"
    log.write_text("\n".join(lines))

    windows = len(list(windows_of_steps(parse_iterations(lines), 40_000)))
    row = predict_json(predict, "--trace", trace, "--log", str(log), "--gpu", "RTX 4090", "--", *SERVE, "64")

    assert row["limits"]["kv_blocks"] == 2500
    assert row["law"]["source"] == f"{windows} windows of steps in the log"
    assert row["law"]["law"]["step_us"] == pytest.approx(LAW.step_us, rel=0.05)
    assert row["law"]["law"]["token_us"] == pytest.approx(LAW.token_us, rel=0.05)


def test_a_page_of_metrics_tells_the_time_outside_and_what_is_cached(
    predict: Predict, trace: str, law: str
) -> None:
    argv = ("--trace", trace, "--law", law, "--gpu", "RTX 4090")
    plain, measured = (
        predict_json(predict, *argv, *more, "--", *SERVE, "64")
        for more in ((), ("--metrics", "tests/support/scrapes/vllm-0.32-later.txt"))
    )

    assert plain["outside_s"] == {"value": 0.008, "low": 0.004, "high": 0.016}
    outside = measured["outside_s"]
    assert outside["low"] == outside["value"] == outside["high"] > 0


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--trace", "gone.jsonl"), "--trace gone.jsonl: cannot be read"),
        (("--trace", "TRACE", "--search"), "--search: needs an objective"),
        (("--trace", "TRACE", "--metrics", "TRACE", "--gpu", "L4"), "give the output of `curl http://SERVER/metrics`"),
        (("--trace", "TRACE", "--ttft", "soon"), "--ttft soon: not a duration"),
        (("--trace", "TRACE", "--ttft", "500"), "--ttft 500: not a duration with its unit"),
        (("--trace", "TRACE", "--rate", "0"), "--rate 0: must be a factor"),
        (("--trace", "TRACE", "--kv-tokens", "0", "--gpu", "T4"), "--kv-tokens 0: must be at least 1"),
        (("--trace", "TRACE"), "depend on the GPU, which is unknown: set max_num_batched_tok"),
        (("--trace", "TRACE", "--gpu", "Quadro RTX 8000"), "the speed of Quadro RTX 8000 is unknown"),
        (("--trace", "TRACE", "--gpu", "L4", "--kv-tokens", "9000", "--law", "TRACE"), "--law: not JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(
    predict: Predict, trace: str, argv: tuple[str, ...], complaint: str
) -> None:
    words = [trace if word == "TRACE" else word for word in argv]

    status, out, err = predict(*words, "--", *SERVE, "64")

    assert (status, out) == (2, "")
    assert complaint in err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--max-num-seqs", "0"), "--max-num-seqs is at least 1, not 0"),
        (("--max-num-seqs", "many"), "--max-num-seqs is a whole number, not many"),
        (
            ("--max-num-seqs", "512", "--max-num-batched-tokens", "64"),
            "max_num_batched_tokens 64 is below max_num_seqs 512",
        ),
        (("--tensor-parallel-size", "3"), "32 attention heads cannot be shared out to 3 GPUs"),
    ],
)
def test_a_command_that_vllm_refuses_is_not_predicted(
    predict: Predict, trace: str, law: str, flags: tuple[str, ...], why: str
) -> None:
    argv = ("--trace", trace, "--law", law, "--gpu", "RTX 4090", "--", *SERVE[:-1], *flags)
    status, out, err = predict(*argv)

    assert (status, out) == (2, "")
    assert "vLLM refuses this command: " in err
    assert why in err


def test_what_vllm_may_refuse_is_a_warning(predict: Predict, trace: str, law: str) -> None:
    argv = ("--trace", trace, "--law", law, "--gpu", "RTX 4090", "--kv-tokens", "9000", "--", *SERVE, "8")
    later = ("--vllm-version", "0.40.0", *argv, "--max-num-sequences-of-a-later-release", "3")
    _, out, _ = predict(*later)
    long = predict_json(predict, *argv, "--max-model-len", "131072")["warnings"]
    well = predict_json(predict, *argv)["warnings"]

    assert "vLLM may refuse this: --max-num-sequences-of-a-later-release is no flag of" in out
    assert len(long) == 1
    assert well == []


def test_the_search_proposes_nothing_that_the_data_sheet_cannot_tell(predict: Predict, trace: str) -> None:
    argv = ("--trace", trace, "--gpu", "RTX 4090", "--ttft", "1s", "--search", "--", *SERVE, "12")
    search = predict_json(predict, *argv)["search"]

    assert search["changes"] is None
    assert search["gain"] > 0.02
    assert "Nothing certain: " in predict(*argv)[1]


def test_requests_that_come_at_once_have_no_rate(predict: Predict, tmp_path: Path) -> None:
    path = tmp_path / "burst.jsonl"
    path.write_text(
        "".join(write_trace([TraceRequest(arrival_s=0.0, prompt_tokens=99, output_tokens=99)] * 40))
    )

    status, out, err = predict(
        *("--trace", str(path), "--gpu", "RTX 4090", "--ttft", "1s", "--search", "--", *SERVE, "4")
    )

    assert (status, err) == (0, "")
    assert "40 requests at once, on average" in out
    assert "a second" not in out
    assert "servers meet the objectives for this load." in out
