"""Files that Envoy reads: any content is read or reported as broken."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.envoy.files import XdsFiles
from flettner.actuators.envoy.response_file import BrokenFileError
from flettner.actuators.envoy.split import carried_by

LEAVES = st.sampled_from(
    [None, True, 0, 7, -1, 10**400, 1e300, float("inf"), float("nan"), "", "split", "2.1.1"]
)
NAMES = st.sampled_from(
    [
        "version_info",
        "resources",
        "virtual_hosts",
        "routes",
        "name",
        "metadata",
        "filter_metadata",
        "flettner",
    ]
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
METADATA = st.fixed_dictionaries(
    {"epoch": LEAVES, "number": LEAVES, "weights": st.dictionaries(st.just("b"), LEAVES), "fallback": LEAVES},
    optional=dict.fromkeys(("leased", "lease_ms", "lease_expires_ms", "closed_s"), LEAVES),
)


def configuration(metadata: object) -> dict[str, object]:
    route = {"name": "split", "metadata": {"filter_metadata": {"flettner": metadata}}}
    return {"virtual_hosts": [{"routes": [route]}]}


CONFIGURATIONS = (METADATA | JSON).map(configuration) | JSON
CONTENTS = (
    st.binary(max_size=50)
    | st.integers(0, 20_000).map(lambda depth: b'{"version_info": "2.1.1", "resources": ' + b"[" * depth)
    | st.tuples(LEAVES, st.lists(CONFIGURATIONS, max_size=2) | JSON).map(
        lambda fields: json.dumps(dict(zip(("version_info", "resources"), fields, strict=True))).encode()
    )
)


@given(CONTENTS, CONTENTS)
def test_any_file_content_is_read_or_reported_as_broken(routes: bytes, clusters: bytes) -> None:
    with TemporaryDirectory() as folder:
        files = XdsFiles(Path(folder), "chat")
        files.path("rds").parent.mkdir(parents=True)
        files.path("rds").write_bytes(routes)
        files.path("cds").write_bytes(clusters)

        with suppress(BrokenFileError):
            files.carried()
        with suppress(BrokenFileError):
            files.clusters()
        assert all(isinstance(version.epoch, int) for version in files.versions())


@given(CONFIGURATIONS)
def test_any_configuration_is_a_split_or_foreign(resource: object) -> None:
    with suppress(ValueError):
        carried_by([resource])  # type: ignore[list-item]


@pytest.mark.parametrize("number", [10**400, float("inf")])
def test_a_split_with_a_number_beyond_float_is_foreign(number: float) -> None:
    whole = {"epoch": 1, "number": 1, "weights": {"b": 100}, "fallback": "b", "closed_s": 0.0}

    for name in ("epoch", "closed_s"):
        with suppress(ValueError):
            carried_by([configuration(whole | {name: number})])
    assert carried_by([configuration(whole)]).weights == {"b": 100}
