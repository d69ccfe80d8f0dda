from pathlib import Path
from typing import Any

import pytest

from flettner.tools.docker_proxy.errors import PolicyError
from flettner.tools.docker_proxy.policy import like, load_policy, parse_policy

EXAMPLE = Path(__file__).parents[3] / "systemd" / "docker-proxy.toml"


def test_the_example_is_well_formed() -> None:
    policy = load_policy(EXAMPLE)

    assert policy.containers.adopt == ("vllm",)
    assert not policy.networks.host


def test_an_empty_policy_allows_no_creation() -> None:
    assert parse_policy({}).create.images == ()
    assert parse_policy({}).mounts.read == parse_policy({}).mounts.write == ()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"creat": {}}, "policy: creat: no such key"),
        ({"create": {"image": []}}, "create.image: no such key"),
        ({"create": {"ipc_host": "yes"}}, "create.ipc_host: Input should be a valid boolean"),
        ({"create": {"images": "vllm"}}, "create.images: Input should be a valid tuple"),
        (
            {"containers": {"adopt": ["vllm*"]}},
            "not the name of a container (write names in full, without `*`)",
        ),
        ({"containers": {"names": ["*"]}}, "would allow any name"),
        ({"containers": {"label": ""}}, "containers.label: String should have at least 1 character"),
        ({"containers": {"read": "none"}}, "containers.read: Input should be 'ours' or 'all'"),
        ({"mounts": {"read": ["/"]}}, "/ contains /proc"),
        ({"mounts": {"read": ["/var"]}}, "/var contains /var/run"),
        ({"mounts": {"read": ["/root"]}}, "/root contains /root"),
        ({"mounts": {"read": ["/run/docker.sock"]}}, "lies inside /run"),
        ({"mounts": {"write": ["/var/lib/docker/volumes"]}}, "lies inside /var/lib/docker"),
        ({"mounts": {"read": ["srv"]}}, "is not a plain absolute path"),
        ({"mounts": {"read": ["/srv/../etc"]}}, "is not a plain absolute path"),
        (
            {"mounts": {"read": ["/srv"], "write": ["/srv/cache"]}},
            "write path /srv/cache lies in read path /srv",
        ),
        ({"socket": {"path": "docker.sock"}}, "is not an absolute path"),
    ],
)
def test_an_invalid_policy_names_the_key_and_the_error(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(tables)

    assert message in str(caught.value)


def test_all_errors_of_a_policy_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[create]\nimage = []\n[mounts]\nread = ["/"]\n')

    with pytest.raises(PolicyError) as caught:
        load_policy(file)

    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(("text", "message"), [("x =", "not TOML"), (None, "No such file")])
def test_an_unreadable_policy_file_is_reported(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "p.toml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(PolicyError, match=message):
        load_policy(file)


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("vllm/vllm-openai:*", "vllm/vllm-openai:v0.11.0", True),
        ("vllm/vllm-openai:*", "evil.io/vllm/vllm-openai:v0.11.0", False),
        ("vllm/*", "vllm/a/b:x", False),
        ("vllm/*", "VLLM/a", False),
        ("a.c", "abc", False),
        ("flettner-*", "flettner-x\n", False),
        ("flettner", "flettner\n", False),
    ],
)
def test_a_pattern_matches_the_full_text_and_no_slash(pattern: str, text: str, fits: bool) -> None:
    assert like(pattern, text) is fits
