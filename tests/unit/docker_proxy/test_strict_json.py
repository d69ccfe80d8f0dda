import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.tools.docker_proxy.errors import Refused
from flettner.tools.docker_proxy.strict_json import encode, parse


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"HostConfig": {"Privileged": false, "Privileged": true}}', "'Privileged' occurs twice"),
        (b'{"A": 1, "\\u0041": 2}', "'A' occurs twice"),
        (b'{"A": 1} {"A": 2}', "not one JSON value"),
        (b'{"A": 1}garbage', "not one JSON value"),
        (b"", "not one JSON value"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"A": "\xff"}', "not UTF-8"),
        (b'\xef\xbb\xbf{"A": 1}', "not one JSON value"),
        ('{"A": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"A": "\\ud800"}', "half a surrogate"),
        (b'{"A\\u0000": 1}', "NUL"),
        (b'{"A": NaN}', "not JSON"),
        (b'{"A": 1e400}', "a fraction"),
        (b'{"A": 0.5}', "a fraction"),
        (b'{"A": ' + b"[" * 40 + b"]" * 40 + b"}", "nested"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"A": ' + b"9" * 5000 + b"}", "not one JSON value"),
    ],
    ids=lambda it: str(it)[:40],
)
def test_ambiguous_json_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        parse(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_at_most_refused(body: bytes) -> None:
    try:
        value = parse(body)
    except Refused:
        return

    assert parse(encode(value)) == value


def test_forwarded_json_is_plain_ascii_with_unique_keys() -> None:
    body = '{"Labels": {"\u017f": "\u212a"}}'

    assert encode(parse(body.encode())) == body.encode("ascii", "backslashreplace")
