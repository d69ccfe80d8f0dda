"""`flettner report`: the page of a real rollout, and its seal."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flettner.agent.audit import checkpoints
from flettner.agent.audit.chain import verify
from flettner.agent.audit.history import Point
from flettner.agent.domain.state import Phase
from flettner.tools.cli.change_report import write_page
from flettner.tools.cli.report import find_change
from tests.support.fast_time import NOON, in_no_time
from tests.unit.cli.conftest import runs
from tests.unit.scenarios.test_loop import approve, reach
from tests.unit.scenarios.test_unwritable import Place


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("s")
    promote_in_virtual_time(folder)
    return folder


def promote_in_virtual_time(folder: Path) -> None:
    """Write the journal of a daemon in virtual time, of one promoted change."""

    async def promote() -> None:
        place = Place(folder)
        async with place.running() as loop:
            await approve(loop)
            await reach(loop, Phase.OBSERVING)

    in_no_time(promote())


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_says_what_why_who_and_how_it_ended(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, page, _ = runs(capsys, "report")("chat-1", "--state-dir", str(state_dir))

    parsed = Tags()
    parsed.feed(page)
    assert status == 0
    assert "Change chat-1 of chat" in parsed.text
    assert "promoted" in parsed.text
    assert re.search(r"max_num_seqs\d+ → \d+", parsed.text)
    assert "alice (person): suggestion.approved" in parsed.text
    assert "rollout.promoted" in parsed.text
    assert not {tag for tag, _ in parsed.seen} & {"script", "link", "img", "iframe"}
    assert "http://" not in page.replace("http://www.w3.org", "")
    pin = re.search(r"--pin (\d+):([0-9a-f]{64})", parsed.text)
    assert pin is not None
    assert verify(state_dir / "audit.jsonl").ok


def write_page_with_charts(state_dir: Path) -> str:
    change = find_change(state_dir / "audit.jsonl", "chat-1")
    points = [
        Point(
            at=NOON + timedelta(seconds=second),
            weight=5 if second < 3 else 50,
            judged={"errors": (0.5, 2.0**second), "ttft": (0.0, 1e76)},
        )
        for second in range(6)
    ]
    return write_page(replace(change, points=points), written_at="now", version="0")


def test_the_charts_are_in_the_page_and_name_their_limits(state_dir: Path) -> None:
    page = write_page_with_charts(state_dir)

    parsed = Tags()
    parsed.feed(page)
    tags = [tag for tag, _ in parsed.seen]
    assert (tags.count("svg"), tags.count("polyline")) == (3, 4)
    assert "20: enough" in page
    assert "100: roll back" in page
    assert "nan" not in page
    assert "inf" not in page


def test_the_cost_is_that_of_the_minutes_before_and_after(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3.6 an hour for a GPU are 0.001 a second: 1,000 tokens a second are a million for 1."""
    rollout = find_change(state_dir / "audit.jsonl", "chat-1").rollout
    assert rollout.ended_at is not None
    rows = [
        {"at": int(at.timestamp()), "generated_per_s": tokens, "goodput_rps": 4.0, "power_w": 500.0}
        for at, tokens in (
            (rollout.started_at - timedelta(minutes=5), 1000.0),
            (rollout.ended_at + timedelta(minutes=5), 2000.0),
        )
    ]
    series = state_dir / "chat" / "series.jsonl"
    series.parent.mkdir(exist_ok=True)
    series.write_text("".join(json.dumps(row) + "\n" for row in rows))

    page = runs(capsys, "report")("chat-1", "--state-dir", str(state_dir), "--gpu-hour", "3.6")[1]

    series.unlink()
    good = "0.250 for 1,000 requests within the objectives"
    assert f"1 GPU, 500 W; 1.00 for a million tokens, {good}, 2.00 tokens per joule" in page
    assert f"1 GPU, 500 W; 0.500 for a million tokens, {good}, 4.00 tokens per joule" in page
    assert "Cost" not in runs(capsys, "report")("chat-1", "--state-dir", str(state_dir))[1]


def test_a_changed_page_and_a_foreign_signature_are_found(
    state_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = runs(capsys, "report")
    key, foreign, page = state_dir / "audit.key", tmp_path / "other.key", tmp_path / "page.html"
    unsigned = tmp_path / "unsigned.html"
    report("chat-1", "--state-dir", str(state_dir), "-o", str(unsigned))
    public, other = tmp_path / "audit.pub", tmp_path / "other.pub"
    public.write_text(checkpoints.create_signer(key).public_pem())
    other.write_text(checkpoints.create_signer(foreign).public_pem())

    assert report("chat-1", "--state-dir", str(state_dir), "-o", str(page))[0] == 0
    assert report("--verify", str(page), "--key", str(public)) == (0, f"{page}: signed\n", "")
    assert "give --key" in report("--verify", str(page))[1]
    assert report("--verify", str(page), "--key", str(other))[0] == 1
    assert report("--verify", str(unsigned))[1] == f"{unsigned}: unchanged; it is not signed\n"
    assert report("--verify", str(unsigned), "--key", str(public))[0] == 1
    page.write_bytes(page.read_bytes().replace(b"alice", b"carol"))
    status, _, why = report("--verify", str(page), "--key", str(public))
    assert (status, "content was changed" in why) == (1, True)
    page.write_bytes(b"<html></html>")
    assert "it has no seal" in report("--verify", str(page))[2]
    key.unlink()


def test_an_unknown_rollout_is_refused(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, why = runs(capsys, "report")("chat-9", "--state-dir", str(state_dir))

    assert (status, "has no rollout chat-9" in why) == (2, True)
