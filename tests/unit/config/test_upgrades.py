"""`[targets.upgrades]`: what an administrator may ask for, and errors."""

from pathlib import Path

import pytest

from flettner.agent.config import loader
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.upgrade import UpgradeLimits
from tests.unit.config.test_config import SMALLEST, built


def limits(text: str) -> UpgradeLimits:
    """Of an engine of a kind that nothing is known of: each list may mean something to it."""
    target = SMALLEST.replace('"process"', '"own"')
    loaded = loader.parse_config(f"{target}{text}\n", here=Path("/etc/flettner"), build=built)
    return loaded.targets[0].upgrades


def test_nothing_is_allowed_by_default() -> None:
    assert limits("") == UpgradeLimits()


def test_reads_every_list() -> None:
    text = """
        [targets.upgrades]
        images = ["vllm/vllm-openai:v0.*"]
        commands = ["/opt/vllm-*/bin/vllm"]
        models = ["Qwen/*"]
        revisions = ["main"]
        env = ["VLLM_USE_V1"]
    """

    assert limits(text) == UpgradeLimits(
        images=("vllm/vllm-openai:v0.*",),
        commands=("/opt/vllm-*/bin/vllm",),
        models=("Qwen/*",),
        revisions=("main",),
        env=("VLLM_USE_V1",),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[targets.upgrades]\nimage = []", "[targets.upgrades] image: unknown key"),
        ("[targets.upgrades]\nenv = ['VLLM_*']", "'VLLM_*' is not the name of an environment variable"),
        ("[targets.upgrades]\nenv = ['HF_TOKEN']", "HF_TOKEN names a secret, and the audit journal keeps"),
        (
            "[targets.bounds.model]\nallowed = ['Qwen/Qwen3-8B']",
            "[targets.bounds.model]: write [targets.upgrades] models instead: only admins change it",
        ),
    ],
)
def test_names_an_invalid_limit(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        limits(text)

    assert expected in str(error.value)
