"""`flettner advise` on a server that is not healthy: that comes first, and no flag is changed."""

import json
import re

import pytest

from tests.unit.cli.conftest import FLAGS, QUEUE, Advise, Scrapes
from tests.unit.sensors.pages import LATER, PAGE, two_engines, with_values, without

OK = '{handler="/v1/completions",method="POST",status="2xx"}'
BORN = 1795248910.69  # process_start_time_seconds of the pages


def ended(page: bytes, **reasons: int) -> bytes:
    """Set how many requests ended, by finished_reason."""
    for reason, count in reasons.items():
        page, changed = re.subn(
            rb'(?m)^(vllm:request_success_total\{.*finished_reason="%s".*\}) \S+$' % reason.encode(),
            rb"\1 %d" % count,
            page,
        )
        assert changed
    return page


def answered_5xx(page: bytes, count: int) -> bytes:
    line = b"http_requests_total" + OK.encode()
    return page.replace(line, line.replace(b"2xx", b"5xx") + b" %d\n" % count + line)


FIRST, LAST = (ended(with_values(page, **QUEUE), length=0) for page in (PAGE, LATER))


@pytest.mark.parametrize(
    ("first", "last", "rule"),
    [
        pytest.param(FIRST, ended(LAST, length=40, error=40), "HC3", id="half of the requests fail"),
        pytest.param(FIRST, answered_5xx(ended(LAST, length=40), 40), "HC3", id="half are answered 5xx"),
        pytest.param(
            FIRST, with_values(LAST, process_start_time_seconds=BORN + 9e6), "HC2", id="it restarted"
        ),
        pytest.param(FIRST, FIRST, "HC1", id="it hangs"),
        pytest.param(
            two_engines(FIRST, with_values(FIRST, num_requests_waiting=0, num_requests_running=1)),
            two_engines(LAST, with_values(LAST, num_requests_waiting=0, num_requests_running=1)),
            "HC6",
            id="one engine queues beside a free one",
        ),
        pytest.param(
            with_values(FIRST, num_requests_waiting_by_reason=14),
            with_values(LAST, num_requests_waiting_by_reason=14),
            "HC7",
            id="what waits is deferred",
        ),
    ],
)
def test_health_comes_before_every_flag(
    advise: Advise, scrapes: Scrapes, first: bytes, last: bytes, rule: str
) -> None:
    status, out, err = advise(*scrapes(first, last), "--flags", FLAGS, "--json")

    document = json.loads(out)
    assert (status, err) == (1, "")
    assert (document["findings"][0]["rule"], document["findings"][0]["severity"]) == (rule, "error")
    assert not [row for row in document["findings"] if row["knob"]]
    assert document["command"] == FLAGS.split()


@pytest.mark.parametrize(
    ("last", "rule"),
    [
        pytest.param(ended(LAST, length=40, abort=40), "HC5", id="half are aborted"),
        pytest.param(
            with_values(ended(LAST, length=40), admission_rejections_total=20),
            "HC4",
            id="a third is rejected",
        ),
    ],
)
@pytest.mark.parametrize(("cap", "changes"), [(2, ["Q1"]), (64, [])])
def test_a_low_cap_that_makes_requests_fail_is_raised(
    advise: Advise, scrapes: Scrapes, last: bytes, rule: str, cap: int, changes: list[str]
) -> None:
    first = with_values(FIRST, admission_rejections_total=0)
    flags = ("--flags", f"vllm serve tiny --max-num-seqs {cap} --enforce-eager")

    _, out, _ = advise(*scrapes(first, last), *flags, "--json")

    rows = json.loads(out)["findings"]
    assert rows[0]["rule"] == rule
    assert [row["rule"] for row in rows if row["knob"]] == changes


def test_a_page_with_a_new_label_still_counts(advise: Advise, scrapes: Scrapes) -> None:
    first = re.sub(rb'(?m)^vllm:request_success_total\{.*"abort".*\n', b"", FIRST)

    _, out, _ = advise(*scrapes(first, ended(LAST, length=40)), "--flags", FLAGS, "--json")

    assert json.loads(out)["findings"][0]["rule"] == "Q1"


def test_pages_with_different_metrics_are_refused(advise: Advise, scrapes: Scrapes) -> None:
    status, _, err = advise(*scrapes(without(FIRST, "time_to_first_token_seconds"), LAST))

    assert status == 2
    assert "has metrics or engines that" in err


def test_falling_counts_without_a_start_time_are_a_restart(advise: Advise, scrapes: Scrapes) -> None:
    pages = [re.sub(rb"(?m)^(process_start_time_seconds|vllm:prompt_tokens_created).*\n", b"", page)
             for page in (LAST, FIRST)]  # fmt: skip

    status, out, _ = advise(*scrapes(*pages), "--json")

    assert (status, json.loads(out)["findings"][0]["rule"]) == (1, "HC2")


def test_a_sleeping_server_is_to_be_woken_not_restarted(advise: Advise, scrapes: Scrapes) -> None:
    asleep = re.sub(rb'(?m)^(vllm:engine_sleep_state.*"(?:awake|discard_all)"\}) .*$', rb"\1 0", FIRST)
    asleep = re.sub(rb'(?m)^(vllm:engine_sleep_state.*"weights_offloaded"\}) .*$', rb"\1 1", asleep)
    asleep = with_values(asleep, num_requests_running=0)

    _, out, _ = advise(*scrapes(asleep, asleep), "--json")

    finding = json.loads(out)["findings"][0]
    assert (finding["rule"], "wake_up" in finding["expects"]) == ("HC1", True)


def test_the_text_begins_with_the_health(advise: Advise, scrapes: Scrapes) -> None:
    _, out, _ = advise(*scrapes(FIRST, ended(LAST, length=40, error=40)), "--flags", FLAGS)

    assert "HEALTH: to be repaired before anything is tuned\n\n  HC3 requests-fail  no flag to change" in out
    assert "Q1 queue-cap-too-low by HC3 requests-fail" in out


def test_two_failures_of_35_are_chance(advise: Advise, scrapes: Scrapes) -> None:
    quiet = {"num_requests_waiting": 0}
    pages = scrapes(with_values(FIRST, **quiet), with_values(ended(LAST, length=33, error=2), **quiet))

    status, out, _ = advise(*pages)

    assert (status, "no findings" in out) == (0, True)


def test_a_server_that_rejects_every_request_is_not_idle(advise: Advise, scrapes: Scrapes) -> None:
    page = with_values(PAGE, admission_rejections_total=0)

    status, out, _ = advise(*scrapes(page, with_values(page, admission_rejections_total=20)), "--json")

    document = json.loads(out)
    assert (status, document["window"]["idle"]) == (1, False)
    assert document["findings"][0]["rule"] == "HC4"


def test_a_server_that_fails_every_request_is_not_idle(advise: Advise, scrapes: Scrapes) -> None:
    status, out, _ = advise(*scrapes(PAGE, answered_5xx(PAGE, 20)), "--json")

    assert (status, json.loads(out)["findings"][0]["rule"]) == (1, "HC3")


def test_pages_in_the_wrong_order_are_no_restart(advise: Advise, scrapes: Scrapes) -> None:
    status, _, err = advise(*scrapes(LATER, PAGE))

    assert status == 2
    assert "the second is not of a later start of the server: give the older page first" in err
