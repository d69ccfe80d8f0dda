"""Every block of config on a page is taken by the real config loader: alone, or in a smallest config."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from agent.config.loader import parse
from agent.domain.errors import ConfigError
from tests.integration.docs.blocks import PAGES, REPOSITORY, Block, blocks

pytestmark = pytest.mark.smoke

TARGET = '[[targets]]\nname = "chat"\n'
ENGINE = '[targets.engine]\nkind = "process"\nserving = "http://127.0.0.1:8000"\n'
DOCKER = '[targets.engine]\nkind = "docker"\ncontainers = ["vllm"]\n'
BLOCKS = blocks("toml")


def whole(fragment: str) -> str:
    """The block with as much around it as a config needs."""
    document = tomllib.loads(fragment)
    targets = document.get("targets")
    if isinstance(targets, list):
        return fragment
    engine = targets.get("engine") if isinstance(targets, dict) else None
    if engine is None:
        return f"{TARGET}{ENGINE}{fragment}"
    if "kind" not in engine:
        return TARGET + fragment.replace("[targets.engine]\n", DOCKER)
    return TARGET + fragment


def is_package(block: Block) -> bool:
    """The pyproject.toml of a package with a policy: tests/unit/test_writing_a_policy.py installs it."""
    return "project" in tomllib.loads(block.text)


@pytest.mark.parametrize(
    "block", [one for one in BLOCKS if not is_package(one)], ids=lambda block: block.where
)
def test_a_block_of_config_is_taken(block: Block, tmp_path: Path) -> None:
    (tmp_path / "policies.d").mkdir()
    policy = (REPOSITORY / "examples" / "queue-limit" / "queue_limit" / "__init__.py").read_text()
    (tmp_path / "policies.d" / "queue_limit.py").write_text(policy)
    (tmp_path / "golden.jsonl").write_text("".join(f"What is {n} and {n}?\n" for n in range(8)))
    parse(whole(block.text), here=tmp_path)


def test_no_block_is_missed() -> None:
    fences = sum(
        line.lstrip().startswith("```toml") for page in PAGES for line in page.read_text().splitlines()
    )
    assert len(BLOCKS) == fences
    assert [one.page for one in BLOCKS if is_package(one)] == ["docs/writing-a-policy.md"]


@pytest.mark.parametrize(
    "wrong", ['[agent]\nmood = "advise"\n', "[targets.rollout]\nhold = true\n", "[targets.slo]\nttft = 5\n"]
)
def test_a_wrong_block_is_found(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        parse(whole(wrong), here=tmp_path)


def test_prometheus_takes_what_the_pages_say_for_it(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text("".join(one.text for one in blocks("yaml")).replace("/etc/prometheus", str(tmp_path)))
    (tmp_path / "trimtab.token").touch()
    (tmp_path / "trimtab.rules.yml").symlink_to(REPOSITORY / "deploy" / "prometheus" / "trimtab.rules.yml")

    done = subprocess.run(
        ["promtool", "check", "config", config], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert re.search(r"trimtab.rules.yml\n.*SUCCESS: \d+ rules found", done.stdout)
