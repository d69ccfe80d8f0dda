from math import isnan

import pytest

from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics.exposition import (
    LONGEST_SAMPLE,
    MOST_LINES,
    MOST_SAMPLES,
    _remembered_labels,
    decode_page,
    parse_bucket,
    parse_labels,
    pick_samples,
)


def page(*lines: str) -> bytes:
    return "\n".join(("# TYPE a gauge", *lines, "")).encode()


def picked(*lines: str) -> list[tuple[str, float]]:
    return pick_samples(decode_page(page(*lines)), {"a"}).get("a", [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", ("", 1.0)),
        ("a 1.5e+09 1700000000000", ("", 1.5e9)),
        ("a{} 2", ("", 2.0)),
        ('a{b="c"} 3', ('b="c"', 3.0)),
        ('a{b="c"} 3 1700000000000', ('b="c"', 3.0)),
        ('a{b="{d} 7",} 4', ('b="{d} 7",', 4.0)),
        ("a +Inf", ("", float("inf"))),
        ("a 1\r", ("", 1.0)),
    ],
)
def test_parses_every_line_that_the_format_allows(line: str, expected: tuple[str, float]) -> None:
    assert picked(line) == [expected]


def test_parses_nan() -> None:
    assert isnan(picked("a NaN")[0][1])


def test_only_the_full_name_matches() -> None:
    assert picked("ab 1", 'ab{a="1"} 2', "# a 3", " a 4") == []


@pytest.mark.parametrize("line", ["a", "a ", "a one", 'a{b="c" 1', "a 1 yesterday", 'a{b="c"}'])
def test_malformed_wanted_line_is_an_error(line: str) -> None:
    with pytest.raises(MetricsPageError, match="cannot be read"):
        picked(line)


def test_unwanted_lines_are_not_parsed() -> None:
    assert picked("b one", "a 1") == [("", 1.0)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\xff\xfe\x00\x01" * 99, "not UTF-8"),
        (b"<!DOCTYPE html>\n<html><body>502 Bad Gateway</body></html>\n", "not a metrics page: starts with"),
        (b'{"error": "no"}', "not a metrics page: starts with"),
        (page("a 1", "a 2")[:-1], "is cut"),
        (page('a{b="c')[:-1], "is cut"),
    ],
    ids=["empty", "blank", "binary", "html", "json", "cut at a value", "cut in a label"],
)
def test_an_incomplete_page_is_an_error(body: bytes, why: str) -> None:
    with pytest.raises(MetricsPageError, match=why):
        decode_page(body)


def test_labels_are_unescaped() -> None:
    assert parse_labels(r'a="say \"hi\"",b="c:\\d",e="two\nlines",f="a,b=}{"') == {
        "a": 'say "hi"',
        "b": "c:\\d",
        "e": "two\nlines",
        "f": "a,b=}{",
    }
    assert parse_labels("") == {}
    assert parse_labels('a="",') == {"a": ""}


@pytest.mark.parametrize(
    "inside", ["a", "a=b", 'a="b', 'a="b" c="d"', ',a="b"', '1a="b"', 'le="1"} 3 # {t="x"']
)
def test_malformed_labels_are_an_error(inside: str) -> None:
    with pytest.raises(MetricsPageError, match="labels"):
        parse_labels(inside)


def test_a_bucket_is_separated_from_its_histogram() -> None:
    edge, of = parse_bucket('engine="0",le="0.25",model_name="m"')
    last, of_last = parse_bucket('model_name="m",engine="0",le="+Inf"')

    assert (edge, last) == (0.25, float("inf"))
    assert of == of_last


@pytest.mark.parametrize("inside", ['engine="0"', 'le="wide"', 'role="1"'])
def test_a_bucket_without_an_edge_is_an_error(inside: str) -> None:
    with pytest.raises(MetricsPageError, match="le"):
        parse_bucket(inside)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# TYPE a gauge\n" + "b 1\n" * MOST_LINES, "more than 100000 lines"),
        ("# TYPE a gauge\n" + "a 1\n" * (MOST_SAMPLES + 1), "more than 32768 samples"),
        ('# TYPE a gauge\na{b="' + "x" * LONGEST_SAMPLE + '"} 1\n', "has 4105 characters"),
    ],
    ids=["lines", "samples", "long"],
)
def test_a_page_that_would_cost_much_is_refused(text: str, why: str) -> None:
    with pytest.raises(MetricsPageError, match=why):
        pick_samples(decode_page(text.encode()), {"a"})


def test_long_labels_are_not_remembered() -> None:
    """A server could otherwise fill the memory with different labels on each page."""
    remembered = _remembered_labels.cache_info().currsize

    assert parse_labels(f'a="{"x" * 3000}"') == {"a": "x" * 3000}
    assert _remembered_labels.cache_info().currsize == remembered
