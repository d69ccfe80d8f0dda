"""Every forge, against a stand-in of its API: pull requests are opened, read, rewritten and closed."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from flettner.agent.domain.errors import ConfigError, ForgeError
from flettner.agent.gitops.forge import PullRequestText
from flettner.agent.plugins.loader import build_plugin, list_plugins
from tests.support.forge_stand_in import KINDS, TOKEN, ForgeStandIn, forge_stand_in

TEXT = PullRequestText(branch="flettner/chat-s1", base="main", title="chat: more", body="why\n\n**so**")


@pytest.fixture(params=KINDS)
async def forge(request: pytest.FixtureRequest) -> AsyncIterator[ForgeStandIn]:
    async with forge_stand_in(request.param) as stand_in:
        yield stand_in


def test_every_forge_is_tested() -> None:
    assert set(list_plugins("forges")) == {*KINDS, "none"}


async def test_opens_a_pull_request(forge: ForgeStandIn) -> None:
    made = await forge.plugin.open(TEXT, TOKEN)

    (pull,) = forge.pulls
    assert (pull.branch, pull.base, pull.title, pull.body) == (TEXT.branch, "main", TEXT.title, TEXT.body)
    assert (made.number, made.state, made.head, made.merged_by) == (
        1,
        "open",
        "commit of flettner/chat-s1",
        "",
    )
    assert made.url.startswith("https://forge.example/ops/serving/")


async def test_finds_the_one_that_is_open_already(forge: ForgeStandIn) -> None:
    first = await forge.plugin.open(TEXT, TOKEN)

    assert await forge.plugin.open(replace(TEXT, title="again"), TOKEN) == first
    assert len(forge.pulls) == 1


async def test_says_who_merged(forge: ForgeStandIn) -> None:
    made = await forge.plugin.open(TEXT, TOKEN)
    forge.merge("alice")

    read = await forge.plugin.read(made.number, TOKEN)

    assert (read.state, read.merged_by, read.head) == ("merged", "alice", made.head)


async def test_rewrites_title_and_text(forge: ForgeStandIn) -> None:
    made = await forge.plugin.open(TEXT, TOKEN)

    await forge.plugin.rewrite(made.number, replace(TEXT, title="chat: less", body="new"), TOKEN)

    assert (forge.pulls[0].title, forge.pulls[0].body, forge.pulls[0].state) == ("chat: less", "new", "open")


async def test_closes_it(forge: ForgeStandIn) -> None:
    made = await forge.plugin.open(TEXT, TOKEN)

    await forge.plugin.close(made.number, TOKEN)

    assert (await forge.plugin.read(made.number, TOKEN)).state == "closed"


async def test_a_refusal_is_an_error_without_the_token(forge: ForgeStandIn) -> None:
    wrong = "PLANTED-other"

    with pytest.raises(ForgeError, match="401") as caught:
        await forge.plugin.open(TEXT, wrong)

    assert "PLANTED" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 403, 500])
async def test_an_answer_that_is_no_pull_request_is_an_error(forge: ForgeStandIn, status: int) -> None:
    made = await forge.plugin.open(TEXT, TOKEN)
    forge.status = status

    with pytest.raises(ForgeError):
        await forge.plugin.read(made.number, TOKEN)


async def test_a_forge_that_does_not_answer_is_an_error(forge: ForgeStandIn) -> None:
    forge.url = "http://127.0.0.1:1"

    with pytest.raises(ForgeError, match="Connect"):
        await forge.plugin.read(1, TOKEN)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"project": "ops/serving", "api": "http://forge.example"}, "https://"),
        ({"project": "../admin", "api": "https://forge.example"}, "OWNER/NAME"),
        ({"project": "serving", "api": "https://forge.example"}, "OWNER/NAME"),
    ],
    ids=["plain HTTP", "another path", "no owner"],
)
def test_options_are_checked(kind: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_plugin("forges", kind, options)
