"""The config loader accepts every block of config on a page, alone or in a minimal config."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from flettner.agent.config.loader import parse_config
from flettner.agent.domain.errors import ConfigError
from tests.integration.docs.blocks import PAGES, REPOSITORY, Block, blocks

pytestmark = pytest.mark.smoke

TARGET = '[[targets]]\nname = "chat"\n'
ENGINE = '[targets.engine]\nkind = "process"\nserving = "http://127.0.0.1:8000"\n'
DOCKER = '[targets.engine]\nkind = "docker"\ncontainers = ["vllm"]\n'
BLOCKS = blocks("toml")
PROMETHEUS_PAGES = ("docs/metrics.md", "docs/how-to/grafana-and-alerts.md")


def complete(fragment: str) -> str:
    """Return the block, completed to a valid config."""
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
    """Return the pyproject.toml of a policy package, which tests/unit/test_writing_a_policy.py installs."""
    return "project" in tomllib.loads(block.text)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if not is_package(block)], ids=lambda block: block.where
)
def test_config_block_is_accepted(block: Block, tmp_path: Path) -> None:
    (tmp_path / "policies.d").mkdir()
    policy = (REPOSITORY / "examples" / "queue-limit" / "queue_limit" / "__init__.py").read_text()
    (tmp_path / "policies.d" / "queue_limit.py").write_text(policy)
    (tmp_path / "golden.jsonl").write_text("".join(f"What is {n} and {n}?\n" for n in range(8)))
    parse_config(complete(block.text), here=tmp_path)


def test_checks_every_block() -> None:
    fences = sum(
        line.lstrip().startswith("```toml") for page in PAGES for line in page.read_text().splitlines()
    )
    assert len(BLOCKS) == fences
    assert [block.page for block in BLOCKS if is_package(block)] == ["docs/writing-a-policy.md"]


@pytest.mark.parametrize(
    "wrong", ['[agent]\nmood = "advise"\n', "[targets.rollout]\nhold = true\n", "[targets.slo]\nttft = 5\n"]
)
def test_rejects_a_wrong_block(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        parse_config(complete(wrong), here=tmp_path)


def test_prometheus_accepts_the_documented_config(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    documented: dict[str, list[object]] = {}
    for block in (block for block in blocks("yaml") if block.page in PROMETHEUS_PAGES):
        for key, entries in yaml.safe_load(block.text).items():
            documented.setdefault(key, []).extend(entries)
    config.write_text(yaml.safe_dump(documented).replace("/etc/prometheus", str(tmp_path)))
    (tmp_path / "flettner.token").touch()
    for rules in ("flettner.rules.yml", "vllm.rules.yml"):
        (tmp_path / rules).symlink_to(REPOSITORY / "deploy" / "prometheus" / rules)

    done = subprocess.run(
        ["promtool", "check", "config", config], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert re.search(r"flettner.rules.yml\n.*SUCCESS: \d+ rules found", done.stdout)
    assert re.search(r"vllm.rules.yml\n.*SUCCESS: \d+ rules found", done.stdout)
