"""`flettner notify test` against a real receiver."""

import asyncio
import json
from pathlib import Path

import pytest

from flettner.tools.cli.dispatch import main
from tests.unit.config.test_notify import TARGET
from tests.unit.notifiers.receiver import receiving


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "flettner.toml"


def write(config: Path, *urls: str) -> None:
    tables = [f'[[notify]]\nname = "n{i}"\nkind = "slack"\nurl = "{url}"\n' for i, url in enumerate(urls)]
    config.write_text(TARGET + "\n".join(tables))


async def run(config: Path, *words: str) -> int:
    return await asyncio.to_thread(main, ["notify", "test", *words, "-c", str(config)])


async def test_sends_a_message_and_reports_the_result(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with receiving() as good, receiving(403) as bad:
        write(config, good.url, bad.url)
        status = await run(config)

    assert status == 1
    assert capsys.readouterr().out == "n0: sent\nn1: answered 403\n"
    assert good.bodies[0]["attachments"][0]["title"] == "a test message from flettner"


async def test_sends_to_one_receiver(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with receiving() as good:
        write(config, "http://127.0.0.1:1/PLANTED", good.url)
        status = await run(config, "n1", "--json")

    assert status == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "n1", "sent": True, "why": ""}]


async def test_unreachable_receiver_error_reveals_no_secret(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(config, "http://127.0.0.1:1/PLANTED")

    assert await run(config) == 1
    assert capsys.readouterr().out == "n0: cannot be reached: Connection refused\n"


async def test_unknown_name_lists_the_known_names(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(config, "http://127.0.0.1:1/")

    assert await run(config, "n7") == 2
    assert "no [[notify]] named n7 (there are: n0)" in capsys.readouterr().err


async def test_receiver_of_problems_gets_a_problem_that_resolves_at_once(config: Path) -> None:
    async with receiving() as receiver:
        config.write_text(f'{TARGET}[[notify]]\nkind = "alertmanager"\nurl = "{receiver.url}"\n')
        status = await run(config)

    first, last = (body[0] for body in receiver.bodies)
    assert status == 0
    assert (first["labels"], receiver.visited[0]) == (last["labels"], "/hook/PLANTED/api/v2/alerts")
    assert first["endsAt"] > last["endsAt"]


def test_check_names_an_unreadable_secret(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(f'{TARGET}[[notify]]\nkind = "slack"\nurl_file = "slack.url"\n')

    assert main(["check", str(config)]) == 1
    assert f"[[notify]] slack: {config.parent}/slack.url: cannot be read" in capsys.readouterr().out
