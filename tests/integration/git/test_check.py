"""What `flettner check` says of a repository, its file and its forge, before a suggestion needs them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flettner.agent.gitops.check import find_git_problems
from tests.integration.git.test_pull_requests import FILES, Site, build_site, options_of
from tests.support.forge_stand_in import KINDS, TOKEN

TWO = """\
services:
  chat: {image: vllm/vllm-openai, command: [--model, m]}
  code: {image: vllm/vllm-openai, command: [--model, n]}
"""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with build_site(tmp_path) as site:
        yield site


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
async def test_a_repository_that_can_be_used_has_no_problem_and_gets_no_branch(
    tmp_path: Path, kind: str, name: str
) -> None:
    async with build_site(tmp_path, kind) as site:
        site.repository.path = f"deploy/{name}"
        site.repository.commit(f"{FILES[name]}# for the check\n")
        options = options_of(site.repository, site.forge.plugin)

        assert await find_git_problems(options) == []
        assert site.repository.branches() == {"main"}
        assert site.forge.pulls == []


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            {"repository": "/nowhere/repository.git"},
            "fatal: repository '/nowhere/repository.git' does not exist; correct repository and branch",
        ),
        (
            {"branch": "release"},
            "Remote branch release not found in upstream origin; correct repository and branch",
        ),
        ({"path": "deploy/other.yaml"}, "path: deploy/other.yaml: No such file or directory in main of "),
        ({"server": "code"}, "path: compose.yaml starts 0 servers code: name one (there are: chat); "),
        ({"path": "README.md"}, "path: README.md starts 0 servers in all: name one (there are: none); "),
        ({"path": "link"}, "path: link: leads out of the repository; name the file that holds"),
    ],
    ids=["no repository", "no branch", "no file", "no such server", "no server", "a link out of it"],
)
async def test_a_problem_says_what_to_do(site: Site, values: dict[str, Any], why: str) -> None:
    work = site.repository.home / "work"
    (work / "link").symlink_to("/etc/passwd")
    (work / "README.md").write_text("# Serving\n")
    site.repository.commit(site.repository.content)
    options = options_of(site.repository, site.forge.plugin)
    given = {name: getattr(options, name) for name in options.__slots__} | values

    [problem] = await find_git_problems(type(options)(**given))

    assert why in problem
    assert TOKEN not in problem


async def test_a_file_with_several_servers_needs_the_name_of_one(site: Site) -> None:
    site.repository.commit(TWO)

    [problem] = await find_git_problems(options_of(site.repository, site.forge.plugin))

    assert "starts 2 servers in all: name one (there are: chat, code)" in problem
    assert await find_git_problems(options_of(site.repository, site.forge.plugin, server="code")) == []


async def test_a_repository_that_takes_no_push_is_a_problem(site: Site) -> None:
    """The program on the other side ends at once, as where a key may only read."""
    url = f"file://{site.repository.bare}"
    options = options_of(site.repository, site.forge.plugin)
    given = {name: getattr(options, name) for name in options.__slots__} | {"repository": url}
    (site.repository.home / "gitconfig").write_text('[remote "origin"]\nreceivepack = false\n')

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GIT_CONFIG_GLOBAL", str(site.repository.home / "gitconfig"))
        [problem] = await find_git_problems(type(options)(**given))

    assert problem.startswith(f"repository: nothing may be pushed to {url}: git push: ")
    assert problem.endswith("it needs to write")


async def test_a_token_that_the_forge_refuses_is_a_problem(site: Site) -> None:
    options = options_of(site.repository, site.forge.plugin)
    (site.repository.home / "token").write_text("PLANTED-other")

    [problem] = await find_git_problems(options)

    assert problem.startswith("forge: the API does not list the pull requests: GET http://127.0.0.1:")
    assert "answered 401: Bad credentials; correct project and api, and give a token_file" in problem
    assert "PLANTED" not in problem


async def test_a_token_that_is_missing_is_the_only_problem(site: Site) -> None:
    options = options_of(site.repository, site.forge.plugin)
    (site.repository.home / "token").unlink()

    [problem] = await find_git_problems(options)

    assert problem.startswith("token_file: ")
    assert site.forge.calls == []
