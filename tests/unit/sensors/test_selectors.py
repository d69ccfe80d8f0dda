import pytest

from flettner.sensors.prometheus.selectors import Selector, build_age_query, find_selectors


@pytest.mark.parametrize(
    ("promql", "expected"),
    [
        ("up", [("up", None)]),
        ("job:up:sum", [("job:up:sum", None)]),
        ('up{job="a"}', [('up{job="a"}', None)]),
        ('{__name__="up",job="a"}', [('{__name__="up",job="a"}', None)]),
        ('{"odd.name", job="a"}', [('{"odd.name", job="a"}', None)]),
        ('up {job="a"} [30s]', [('up{job="a"}', "30s")]),
        ('sum by (job, name) (rate(x_total{a="}",b=~"c{2}"}[1m]))', [('x_total{a="}",b=~"c{2}"}', "1m")]),
        ("sum(x) by (y)", [("x", None)]),
        ("sum without(y) (x)", [("x", None)]),
        ("SUM BY (y) (x)", [("x", None)]),
        ("a / on (b) group_left (c) d", [("a", None), ("d", None)]),
        ("a and b or c unless d", [("a", None), ("b", None), ("c", None), ("d", None)]),
        ("a > bool 1e3", [("a", None)]),
        ("a offset 5m + a @ 1609746000 + a @ end()", [("a", None)]),
        ("max_over_time(rate(a[1m])[10m:30s])", [("a", "1m")]),
        ("avg_over_time(a[10m:1m])", [("a", "10m")]),
        ("quantile_over_time(0.9, a[1h30m])", [("a", "1h30m")]),
        ("histogram_quantile(0.95, sum by (le) (rate(a_bucket[1m])))", [("a_bucket", "1m")]),
        ('label_replace(a, "b", "$1", "c", "(d) # e{")', [("a", None)]),
        ("a # b\n+ c", [("a", None), ("c", None)]),
        ("topk(3, a) + count_values('b', c)", [("a", None), ("c", None)]),
        ("vector(1) + time() * -Inf + 0x1F + NaN", []),
        ('"text"', []),
        ("", []),
        ("sum(sum_total) + by_total", [("sum_total", None), ("by_total", None)]),
        ('{a="b"} + {c="d"}', [('{a="b"}', None), ('{c="d"}', None)]),
    ],
)
def test_finds_the_selectors_of_an_expression(promql: str, expected: list[tuple[str, str | None]]) -> None:
    assert find_selectors(promql) == tuple(Selector(*parts) for parts in expected)


@pytest.mark.parametrize("junk", ["{", "a{", "a[", ")((", "by(", "'", "a{b='", "\x00", "[]", "sum by"])
def test_an_invalid_expression_raises_no_error(junk: str) -> None:
    build_age_query(junk)


def test_an_expression_without_selectors_has_no_age() -> None:
    assert build_age_query("vector(1)") is None
