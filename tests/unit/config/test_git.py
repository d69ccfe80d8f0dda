"""`[targets.git]` in the config: its values and errors."""

from pathlib import Path

import pytest

from flettner.agent.config import loader
from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ConfigError, ForgeError
from flettner.forges.github import Github
from flettner.forges.none import NoForge

TARGET = """
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
command = ["vllm", "serve", "m"]
"""
GIT = TARGET + '[targets.git]\nrepository = "https://github.com/ops/serving.git"\npath = "chat.yaml"\n'


def parsed(text: str, here: Path = Path("/etc/flettner")) -> Config:
    return loader.parse_config(text, here=here)


def test_a_command_lives_in_no_repository_by_default() -> None:
    assert parsed(TARGET).targets[0].git is None


def test_a_branch_is_pushed_without_a_forge() -> None:
    git = parsed(GIT).targets[0].git

    assert git is not None
    assert (git.branch, git.server, git.forge, git.token_file, git.people) == (
        "main",
        "",
        NoForge(),
        None,
        {},
    )
    assert git.read_token() == ""


def test_other_keys_are_those_of_the_forge(tmp_path: Path) -> None:
    (tmp_path / "github.token").write_text("PLANTED\n")
    text = 'forge = "github"\nproject = "ops/serving"\ntoken_file = "github.token"\n'
    people = 'people = { alice = ["ann", "admin"] }\n'

    git = parsed(GIT + text + people, tmp_path).targets[0].git

    assert git is not None
    assert (git.forge, git.people) == (Github(project="ops/serving"), {"alice": ("ann", "admin")})
    assert git.read_token() == "PLANTED"


def test_a_token_that_cannot_be_read_is_an_error() -> None:
    git = parsed(GIT + 'token_file = "nowhere"\n').targets[0].git

    assert git is not None
    with pytest.raises(ForgeError, match="nowhere: cannot be read"):
        git.read_token()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('forge = "svn"\n', "no such plugin forges/svn"),
        ('forge = "github"\n', "project: missing"),
        ('projct = "a/b"\n', "projct: unknown key"),
        ('branch = "--upload-pack=x"\n', "branch"),
        ('people = { alice = ["ann", "root"] }\n', "people"),
        ('people = { alice = ["", "operator"] }\n', "people"),
        ('people = { alice = ["a\\u202eb", "operator"] }\n', "printable"),
    ],
    ids=str,
)
def test_names_the_invalid_key(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"targets[\]. ]*git.*{problem}"):
        parsed(GIT + text)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_the_path_stays_in_the_repository(path: str) -> None:
    with pytest.raises(ConfigError, match="path"):
        parsed(GIT.replace("chat.yaml", path))
