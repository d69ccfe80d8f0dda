"""The union of the parts: each target's own resources, whatever the parts of others hold."""

import json
from pathlib import Path

import pytest

from flettner.actuators.envoy import union
from flettner.actuators.envoy.response_file import read_response


def write(home: Path, target: str, *names: str, content: bytes | None = None) -> Path:
    path = union.part(home, target, "cds")
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"version_info": "1.1.1", "resources": [{"name": name} for name in names]}
    path.write_bytes(json.dumps(document).encode() if content is None else content)
    return path


def united(home: Path) -> list[str]:
    union.unite(home, "cds")
    response = read_response(union.path(home, "cds"))
    assert response is not None
    return [resource["name"] for resource in response[1]]


def test_has_the_resources_of_all_targets(tmp_path: Path) -> None:
    write(tmp_path, "chat", "chat/r1", "chat/r2")
    write(tmp_path, "code", "code/r1")

    assert united(tmp_path) == ["chat/r1", "chat/r2", "code/r1"]
    assert union.targets(tmp_path) == ["chat", "code"]


def test_a_removed_part_leaves_the_union(tmp_path: Path) -> None:
    write(tmp_path, "chat", "chat/r1")
    part = write(tmp_path, "code", "code/r1")
    assert united(tmp_path) == ["chat/r1", "code/r1"]

    part.unlink()

    assert united(tmp_path) == ["chat/r1"]


@pytest.mark.parametrize("garbage", [b"", b"{", b"[1]", b'{"version_info": "1", "resources": [7]}'])
def test_a_broken_part_keeps_what_the_union_had(tmp_path: Path, garbage: bytes) -> None:
    write(tmp_path, "chat", "chat/r1")
    write(tmp_path, "code", "code/r1")
    before = united(tmp_path)

    write(tmp_path, "chat", content=garbage)
    write(tmp_path, "code", "code/r2")

    assert before == ["chat/r1", "code/r1"]
    assert united(tmp_path) == ["chat/r1", "code/r2"]


def test_a_part_has_no_resources_of_other_targets_and_no_name_twice(tmp_path: Path) -> None:
    write(tmp_path, "chat", "chat", "chat/r1", "chat/r1", "code/r1", "chatter/r1", "r1", "")
    write(tmp_path, "code", "code/r1")
    write(tmp_path, "nameless", content=b'{"version_info": "1", "resources": [{}]}')

    assert united(tmp_path) == ["chat", "chat/r1", "code/r1"]


def test_a_broken_union_is_made_again_from_the_parts(tmp_path: Path) -> None:
    write(tmp_path, "chat", "chat/r1")
    united(tmp_path)
    union.path(tmp_path, "cds").write_bytes(b"{")

    assert united(tmp_path) == ["chat/r1"]


def test_each_content_has_a_version_of_its_own(tmp_path: Path) -> None:
    versions = []
    for names in (("chat/r1",), ("chat/r1", "chat/r2"), ("chat/r1",)):
        write(tmp_path, "chat", *names)
        united(tmp_path)
        versions.append(json.loads(union.path(tmp_path, "cds").read_bytes())["version_info"])

    assert versions[0] == versions[2] != versions[1]
