from math import nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.domain.reading import EngineSample
from flettner.agent.observe.engine_sample import sample
from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics.page_totals import PageTotals
from flettner.vllm_facts.metrics.totals import PageReader, totals
from tests.unit.sensors.pages import (
    DISABLED_LOG_STATS,
    LATER,
    OLD_NAMES,
    PAGE,
    SCRAPES,
    renamed,
    two_engines,
    with_values,
    without,
)
from tests.unit.sensors.run_sensor import NOON


def between(before: bytes | None, after: bytes) -> EngineSample:
    base = None if before is None else totals(before)
    return sample(base, totals(after), at=NOON, server="chat-r0", interval_s=1.0, version="0.32.0")


def test_parses_a_real_page() -> None:
    change = between(PAGE, LATER)

    assert (change.interval_s, change.running, change.waiting, change.kv_usage) == (1.0, 0.0, 0.0, 0.0)
    assert (change.prompt_tokens, change.generation_tokens, change.preemptions) == (9.0, 1500.0, 0.0)
    assert (change.prefix_queries, change.prefix_hits) == (9.0, 0.0)
    assert {why: count for why, count in change.finished.items() if count} == {"length": 1.0}
    assert change.missing == frozenset()


def test_the_counters_of_speculative_decoding_are_read_where_they_are() -> None:
    def counters(drafts: int, drafted: int, accepted: int) -> bytes:
        names = ("drafts", "draft_tokens", "accepted_tokens")
        values = zip(names, (drafts, drafted, accepted), strict=True)
        series = [
            f'vllm:spec_decode_num_{name}_total{{engine="{engine}"}} {value}\n'
            for name, value in values
            for engine in "01"
        ]
        return "".join(series).encode()

    change = between(PAGE + counters(10, 30, 5), LATER + counters(14, 42, 9))

    assert (change.drafts, change.drafted, change.accepted) == (8.0, 24.0, 8.0)
    assert change.missing == between(PAGE, LATER).missing
    assert between(PAGE, LATER).drafted == 0.0


def test_histograms_are_increases_that_are_not_cumulative() -> None:
    change = between(PAGE, LATER)

    assert change.ttft is not None
    assert change.itl is not None
    assert change.e2e is not None
    assert change.ttft.edges[:5] == (0.001, 0.005, 0.01, 0.02, 0.04)
    assert change.ttft.edges[-1] == 2560.0
    assert change.ttft.counts == (0, 0, 0, 0, 1, *[0] * 18)
    assert change.ttft.sum == pytest.approx(0.0334, abs=1e-4)
    assert change.itl.counts == (1499.0, *[0] * 19)
    assert (change.e2e.total, len(change.e2e.counts)) == (1.0, len(change.e2e.edges) + 1)


def test_the_parts_of_a_request_and_the_steps_are_read() -> None:
    change = between(PAGE, LATER)
    parts = (change.queue, change.prefill, change.decode, change.inference, change.prompts, change.answers)

    assert [part.total for part in parts if part is not None] == [1.0] * 6
    assert change.prefill and change.decode and change.inference  # noqa: PT018 - one fact
    assert change.prefill.sum + change.decode.sum == pytest.approx(change.inference.sum, abs=1e-3)
    assert change.prompts and change.prompts.sum == 9.0  # noqa: PT018
    assert change.steps and change.steps.sum == change.prompt_tokens + change.generation_tokens  # noqa: PT018
    assert change.cached_tokens == 0.0


def test_the_facts_are_the_cache_configuration_and_the_version() -> None:
    facts = between(None, PAGE).facts

    assert facts["version"] == "0.32.0"
    assert (facts["num_gpu_blocks"], facts["kv_cache_max_concurrency"]) == ("4096", "256.0")
    assert "engine" not in facts


def test_the_first_page_of_a_process_has_no_increases() -> None:
    change = between(None, LATER)

    assert (change.interval_s, change.prompt_tokens, change.generation_tokens) == (0.0, 0.0, 0.0)
    assert set(change.finished.values()) == {0.0}
    assert change.ttft is not None
    assert change.ttft.total == 0.0


def test_an_idle_server_has_no_increases() -> None:
    change = between(LATER, LATER)

    assert (change.interval_s, set(change.finished.values())) == (1.0, {0.0})
    for buckets in (
        change.ttft,
        change.itl,
        change.gaps,
        change.e2e,
        change.queue,
        change.prefill,
        change.steps,
    ):
        assert buckets is not None
        assert (set(buckets.counts), buckets.sum) == ({0.0}, 0.0)
        assert len(buckets.counts) == len(buckets.edges) + 1


@pytest.mark.parametrize(
    "after",
    [
        with_values(LATER, process_start_time_seconds=1.9e9),
        with_values(LATER, prompt_tokens_created=1.9e9),
        with_values(LATER, generation_tokens_total=3),
        with_values(LATER, request_success_total=1),
        with_values(LATER, time_to_first_token_seconds_bucket=2, time_to_first_token_seconds_sum=0.1),
    ],
    ids=["new process", "metrics recreated", "counter fell", "finished fell", "histogram fell"],
)
def test_after_a_restart_there_are_no_increases_and_none_is_negative(after: bytes) -> None:
    change = between(PAGE, after)

    assert change.interval_s == 0.0
    assert (change.prompt_tokens, change.generation_tokens, sum(change.finished.values())) == (0.0, 0.0, 0.0)
    assert change.ttft is not None
    assert change.ttft.total == 0.0


def test_engines_are_summed_and_the_fullest_cache_counts() -> None:
    busy = with_values(PAGE, num_requests_running=4, num_requests_waiting=7, kv_cache_usage_perc=0.25)
    full = with_values(PAGE, num_requests_running=2, num_requests_waiting=1, kv_cache_usage_perc=0.75)

    change = between(two_engines(busy, full), two_engines(with_values(LATER, num_requests_running=4), LATER))
    now = between(None, two_engines(busy, full))

    assert (now.running, now.waiting, now.kv_usage) == (6.0, 8.0, 0.75)
    assert (change.prompt_tokens, change.generation_tokens, change.finished["length"]) == (18.0, 3000.0, 2.0)
    assert change.itl is not None
    assert change.itl.counts[0] == 2998.0


def test_model_names_are_summed() -> None:
    both = two_engines(PAGE, PAGE).replace(b'engine="1",', b'engine="0",lora="b",')

    assert totals(both).counters["prompt_tokens"] == 2 * totals(PAGE).counters["prompt_tokens"]


@pytest.mark.parametrize("new", OLD_NAMES)
def test_metric_names_of_older_versions_are_equivalent(new: bytes) -> None:
    old = {new: OLD_NAMES[new]}

    assert between(renamed(PAGE, old), renamed(LATER, old)) == between(PAGE, LATER)


def test_a_server_with_old_and_new_names_counts_once() -> None:
    def both(page: bytes) -> bytes:
        return page + b"".join(
            line for line in renamed(page, OLD_NAMES).splitlines(keepends=True) if line not in page
        )

    assert between(both(PAGE), both(LATER)) == between(PAGE, LATER)


def test_metrics_that_a_server_does_not_have_are_named() -> None:
    names = ("num_preemptions", "kv_cache_usage_perc", "e2e_request_latency_seconds", "cache_config_info")

    change = between(without(PAGE, *names), without(LATER, *names))

    assert change.missing == {"num_preemptions", "kv_cache_usage_perc", "e2e_request_latency_seconds"}
    assert (change.kv_usage, change.e2e, change.facts) == (
        None,
        None,
        {"version": "0.32.0", "sleep_state": "awake"},
    )
    assert change.prompt_tokens == 9.0


@pytest.mark.parametrize("value", [nan, "+Inf", "-Inf", -1])
def test_impossible_values_count_as_missing(value: object) -> None:
    odd = with_values(
        LATER, kv_cache_usage_perc=value, prompt_tokens_total=value, inter_token_latency_seconds_sum=value
    )

    change = between(PAGE, odd)

    assert change.missing == {"kv_cache_usage_perc", "prompt_tokens", "inter_token_latency_seconds"}
    assert (change.kv_usage, change.prompt_tokens, change.itl) == (None, 0.0, None)
    assert change.generation_tokens == 1500.0


def test_a_cache_fuller_than_full_counts_as_missing() -> None:
    assert between(None, with_values(PAGE, kv_cache_usage_perc=37)).missing == {"kv_cache_usage_perc"}


@pytest.mark.parametrize("name", ["num_requests_running", "num_requests_waiting"])
def test_without_the_load_there_is_no_sample(name: str) -> None:
    for page in (without(PAGE, f"{name}{{"), with_values(PAGE, **{name: nan})):
        with pytest.raises(MetricsPageError, match=name):
            totals(page)


def test_other_buckets_than_before_give_no_increase_of_that_histogram() -> None:
    moved = LATER.replace(
        b'time_to_first_token_seconds_bucket{engine="0",le="0.001"',
        b'time_to_first_token_seconds_bucket{engine="0",le="0.002"',
    )
    dropped = b"".join(
        line
        for line in LATER.splitlines(keepends=True)
        if b'time_to_first_token_seconds_bucket{engine="0",le="0.001"' not in line
    )

    for page in (moved, dropped):
        change = between(PAGE, page)
        assert change.ttft is None
        assert change.itl is not None
        assert (change.prompt_tokens, change.missing) == (9.0, frozenset())


def test_a_histogram_that_is_not_cumulative_counts_as_missing() -> None:
    odd = LATER.replace(
        b'time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0',
        b'time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 99.0',
    )

    assert odd != LATER
    assert between(PAGE, odd).missing == {"time_to_first_token_seconds"}


def test_page_without_vllm_metrics_names_possible_causes() -> None:
    with pytest.raises(MetricsPageError, match=r"no vllm: metric.*--disable-log-stats"):
        totals(DISABLED_LOG_STATS)


def test_reports_a_page_with_only_unknown_vllm_metrics() -> None:
    with pytest.raises(MetricsPageError, match="none that is known"):
        totals(b"# TYPE vllm:new gauge\nvllm:new 1\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [(PAGE, LATER), (two_engines(PAGE, PAGE), two_engines(LATER, LATER))],
    ids=["one engine", "two engines"],
)
def test_truncated_page_is_refused_or_contains_all_required_metrics(before: bytes, after: bytes) -> None:
    base, whole = totals(before), between(before, after)
    lines = after.splitlines(keepends=True)
    refused = 0

    for length in range(len(lines)):
        try:
            change = sample(
                base,
                totals(b"".join(lines[:length])),
                at=NOON,
                server="chat-r0",
                interval_s=1.0,
                version="0.32.0",
            )
        except MetricsPageError:
            refused += 1
        else:
            assert change == whole

    assert refused > 500


def test_a_page_cut_within_a_line_is_refused() -> None:
    for length in range(1, len(LATER), 97):
        if not LATER[:length].endswith(b"\n"):
            with pytest.raises(MetricsPageError):
                totals(LATER[:length])


def test_series_that_are_new_are_a_new_start() -> None:
    """Otherwise a truncated first page, taken for complete, would cause a huge increase."""
    assert between(without(PAGE, "generation_tokens_total"), LATER).interval_s == 0.0
    assert between(PAGE, two_engines(LATER, LATER)).interval_s == 0.0


def read(page: bytes) -> PageTotals | None:
    try:
        return totals(page)
    except MetricsPageError:
        return None


@given(st.integers(0, len(PAGE) - 1), st.binary(max_size=6), st.integers(0, 40))
def test_a_damaged_page_gives_no_negative_increase_and_no_other_error(
    place: int, junk: bytes, dropped: int
) -> None:
    damaged = read(LATER[:place] + junk + LATER[place + dropped :])
    base = read(PAGE)
    assert base is not None
    if damaged is None:
        return

    try:
        change = sample(base, damaged, at=NOON, server="chat-r0", interval_s=1.0, version=None)
    except MetricsPageError:
        return

    increases = (
        change.prompt_tokens,
        change.generation_tokens,
        change.preemptions,
        change.prefix_queries,
        change.prefix_hits,
    )
    histograms = [change.ttft, change.itl, change.e2e]
    assert all(increase >= 0 for increase in (*increases, *change.finished.values()))
    assert all(count >= 0 for histogram in histograms if histogram for count in histogram.counts)


RECORDED = [*(path.read_bytes() for path in sorted(SCRAPES.glob("vllm-*.txt"))), two_engines(PAGE, LATER)]
VALUES = ["NaN", "+Inf", "-1", "1e19", "0.0", "7", "7\r", "7 1700000000000", "x", ""]


def edited(page: bytes, random: Random) -> bytes:
    """Some values changed, and at times a line removed, repeated, moved or damaged."""
    lines = page.decode().split("\n")
    for _ in range(random.choice([0, 1, 5, 200])):
        at = random.randrange(len(lines) - 1)
        head, _, _ = lines[at].rpartition(" ")
        value = random.choice(VALUES) if random.random() < 0.1 else repr(random.random() * 1000)
        lines[at] = f"{head} {value}" if head and not head.startswith("#") else lines[at]
    at, other = (random.randrange(len(lines) - 1) for _ in range(2))
    match random.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = lines[at].replace('"', "", 1)
        case _:
            pass
    return "\n".join(lines).encode()


@pytest.mark.parametrize("seed", range(4))
def test_a_remembered_layout_gives_the_totals_of_a_page_that_is_parsed_anew(seed: int) -> None:
    random, reader = Random(seed), PageReader()  # noqa: S311 - which edits, no secret
    read_before = list[PageTotals]()

    for _ in range(100):
        page = edited(random.choice(RECORDED), random)
        fresh = read(page)
        try:
            read_before.append(reader.totals(page))
        except MetricsPageError:
            assert fresh is None
        else:
            assert repr(read_before[-1]) == repr(fresh)  # a birth may be NaN, which is not equal to itself

    assert len(read_before) > 20


def test_layouts_are_remembered_while_replicas_take_turns() -> None:
    reader = PageReader()
    pages = [PAGE, without(PAGE, "num_preemptions"), without(PAGE, "e2e_request")]
    for page in pages:
        reader.totals(page)

    layouts = reader.layouts
    for page in pages * 2:
        reader.totals(page)

    assert len(layouts) == len(pages)
    assert all(now is then for now, then in zip(reader.layouts, layouts, strict=True))
