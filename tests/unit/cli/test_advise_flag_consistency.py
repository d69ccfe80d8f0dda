"""`flettner advise --flags` doubts and ignores flags that do not match the server."""

import json

import pytest

from tests.unit.cli.conftest import Advise, Options, Scrapes
from tests.unit.sensors.pages import LATER, PAGE, with_values


def test_doubts_flags_that_do_not_match_the_server(advise: Advise, scrapes: Scrapes) -> None:
    status, out, _ = advise(*scrapes(PAGE, LATER), "--flags", "--gpu-memory-utilization 0.5")

    assert status == 1
    assert (
        "the server reports gpu_memory_utilization 0.92, --flags 0.5: --flags do not match the server" in out
    )


BUSY = {"num_requests_running": 12.0, "num_requests_waiting": 5.0, "kv_cache_usage_perc": 0.1}
THRASH = BUSY | {"kv_cache_usage_perc": 0.99}


@pytest.mark.parametrize("gauges", [BUSY, THRASH], ids=["a queue", "thrash"])
def test_ignores_a_cap_below_the_observed_concurrency(
    advise: Advise, scrapes: Scrapes, gauges: dict[str, float]
) -> None:
    first = with_values(PAGE, **gauges, num_preemptions_total=0)
    second = with_values(LATER, **gauges, num_preemptions_total=60 * (gauges is THRASH))
    flags = "vllm serve tiny --max-num-seqs 4"

    _, out, _ = advise(*scrapes(first, second), "--flags", flags, "--json")
    _, text, _ = advise(*scrapes(first, second), "--flags", flags)

    document = json.loads(out)
    assert not {"Q1", "K1", "K2", "K3"} & {row["rule"] for row in document["findings"] if row["knob"]}
    assert document["command"] == flags.split()
    assert document["doubts"] == ["12 requests ran concurrently, --flags allow max_num_seqs 4"]
    assert "allow max_num_seqs 4: --flags do not match the server" in text


@pytest.mark.parametrize(
    ("flags", "doubted"),
    [
        pytest.param("--max-num-seqs 4 --data-parallel-size 3", False, id="of three engines together"),
        pytest.param("--max-num-seqs 4 --data-parallel-size 2", True, id="more than of two"),
        pytest.param("--max-num-seqs 64 --max-num-active-seqs 8", True, id="more than may be active"),
        pytest.param("vllm serve tiny", False, id="the model that it serves"),
        pytest.param("vllm serve org/large --served-model-name tiny other", False, id="under another name"),
        pytest.param("vllm serve org/large", True, id="another model"),
        pytest.param("vllm serve tiny --served-model-name chat", True, id="another name"),
        pytest.param("--gpu-memory-utilization 0.92", False, id="the share that it reports"),
        pytest.param("--kv-cache-dtype auto", False, id="the dtype that it reports"),
        pytest.param("--kv-cache-dtype fp8", True, id="another dtype"),
        pytest.param("vllm serve tiny --no-enable-prefix-caching", True, id="caching off, where it is on"),
    ],
)
def test_compares_the_metrics_with_the_flags(
    advise: Advise, scrapes: Scrapes, flags: str, doubted: bool
) -> None:
    pages = scrapes(with_values(PAGE, **BUSY), with_values(LATER, **BUSY))

    status, out, _ = advise(*pages, "--flags", flags, "--json")

    document = json.loads(out)
    assert bool(document["doubts"]) is doubted
    assert status == (1 if doubted or document["findings"] else 0)


def test_one_flag_that_differs_does_not_drop_the_others(advise: Advise, queued: Options) -> None:
    """Q1 knows the cap from the flags, though their memory share is not the server's."""
    flags = "vllm serve tiny --max-num-seqs 2 --gpu-memory-utilization 0.5"

    _, out, _ = advise(*queued, "--flags", flags, "--json")

    document = json.loads(out)
    (row,) = [row for row in document["findings"] if row["rule"] == "Q1"]
    assert document["doubts"] == ["the server reports gpu_memory_utilization 0.92, --flags 0.5"]
    assert (row["current"], row["suggested"]) == (2, 16)
    assert "inferred" not in row["why"]


@pytest.mark.parametrize("cap", [2, 4, 16, 64])
def test_no_change_has_the_value_that_the_server_has(advise: Advise, queued: Options, cap: int) -> None:
    for model in ("tiny", "org/large"):
        flags = f"vllm serve {model} --max-num-seqs {cap} --gpu-memory-utilization 0.5"

        _, out, _ = advise(*queued, "--flags", flags, "--json")

        rows = [row for row in json.loads(out)["findings"] if row["knob"]]
        assert [row for row in rows if row["current"] == row["suggested"]] == []


def test_trusts_the_metrics_over_doubted_flags(advise: Advise, queued: Options) -> None:
    """The flags of another model contain the actual cap of 2, which is inferred instead."""
    _, out, _ = advise(*queued, "--flags", "vllm serve org/large --max-num-seqs 64", "--json")

    document = json.loads(out)
    (row,) = [row for row in document["findings"] if row["rule"] == "Q1"]
    assert document["doubts"]
    assert row["suggested"] == 16
    assert "max_num_seqs is not given, a cap of 2 is inferred" in row["why"]
