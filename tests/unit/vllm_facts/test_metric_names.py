"""The metrics that are read, against the names in each release's own sources."""

import re
from dataclasses import replace

import pytest

from flettner.agent.domain.reading import EngineSample
from flettner.agent.observe.engine_sample import sample
from flettner.vllm_facts.metrics import names
from flettner.vllm_facts.metrics.totals import totals
from flettner.vllm_facts.releases.history import read_history
from tests.unit.sensors.pages import LATER, PAGE, with_values, without
from tests.unit.sensors.run_sensor import NOON

HISTORY = read_history()
PLACES = [place for place, release in enumerate(HISTORY.releases) if release >= (0, 11, 0)]
FIELDS = names.GAUGES | names.COUNTERS | names.HISTOGRAMS
CAME_LATER = {"cached_tokens": (0, 16, 0)}
"""Fields that the older releases do not have under any name, and the first release that has them."""


def _has(name: str, place: int) -> bool:
    """Whether the release has the metric: its client library adds `_total` to the names of counters."""
    spans = [*HISTORY.metrics.get(name, ()), *HISTORY.metrics.get(name.removesuffix("_total"), ())]
    return any(first <= place <= last for first, last in spans)


def _page_of(page: bytes, place: int) -> bytes:
    """A page with the names of the release, and without the metrics that it does not have."""
    for known in FIELDS.values():
        own = next((name for name in known if _has(name, place)), None)
        written = re.compile(
            rb"^((?:# \w+ )?)" + known[0].encode() + rb"(?=[ {_])(?!_\w*_\w)(.*\n)", re.MULTILINE
        )
        page = written.sub(b"" if own is None else rb"\g<1>" + own.encode() + rb"\g<2>", page)
    return page


def _sample(place: int) -> EngineSample:
    before, after = (totals(_page_of(page, place)) for page in (PAGE, LATER))
    return sample(before, after, at=NOON, server="chat-r0", interval_s=1.0, version="0.32.0")


@pytest.mark.parametrize("field", FIELDS)
def test_each_release_has_a_name_of_each_field_that_is_read(field: str) -> None:
    since = CAME_LATER.get(field, (0, 11, 0))
    lacking = [
        HISTORY.releases[place]
        for place in PLACES
        if HISTORY.releases[place] >= since and not any(_has(name, place) for name in FIELDS[field])
    ]

    assert lacking == []


@pytest.mark.parametrize("name", sorted({name for known in FIELDS.values() for name in known}))
def test_each_name_that_is_read_is_one_of_vllm(name: str) -> None:
    assert any(_has(name, place) for place in range(len(HISTORY.releases)))


@pytest.mark.parametrize(
    ("name", "since"),
    [
        (names.CONFIG, (0, 11, 0)),
        (names.SLEEP, (0, 11, 1)),
        (names.WAITING_BY_REASON, (0, 20, 0)),
        (names.REJECTED, (0, 32, 0)),
    ],
)
def test_further_metrics_are_in_each_release_since_they_came(name: str, since: tuple[int, int, int]) -> None:
    assert [HISTORY.releases[place] for place in PLACES if _has(name, place)] == [
        HISTORY.releases[place] for place in PLACES if HISTORY.releases[place] >= since
    ]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, HISTORY.releases[place])))
def test_the_same_server_gives_the_same_sample_in_each_release(place: int) -> None:
    newest, own = _sample(PLACES[-1]), _sample(place)

    assert newest.missing == frozenset()
    assert own.missing <= {names.PLAIN[field] for field in CAME_LATER}
    assert replace(own, missing=frozenset()) == newest


def test_cached_tokens_are_the_hits_where_the_release_does_not_count_them() -> None:
    before, after = (
        totals(with_values(without(page, "prompt_tokens_cached"), prefix_cache_hits_total=hits))
        for page, hits in ((PAGE, 5.0), (LATER, 9.0))
    )

    assert sample(before, after, at=NOON, server="s", interval_s=1.0, version="").cached_tokens == 4.0
