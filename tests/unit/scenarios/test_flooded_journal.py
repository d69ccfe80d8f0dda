"""An operator's token that floods the journal: what each decision adds stays small."""

import asyncio
from pathlib import Path

from flettner.agent.audit.chain import verify
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.write_budget import PERSON_BYTES
from flettner.agent.domain import events as e
from flettner.agent.domain.state import Phase
from flettner.agent.machine.transitions import DENIALS
from flettner.agent.runtime.loop import TargetLoop
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import NOON, in_virtual_time, loop_now
from tests.support.machine_stories import BLUE
from tests.unit.scenarios.test_loop import reach, running

PAIRS = 2 * DENIALS
LONGEST_ENTRY = 32 * 1024  # bytes; a state alone has some 10 KiB


async def propose_and_deny(loop: TargetLoop, number: int, reason: str) -> None:
    to = {"max_num_seqs": 5 + number % 3}
    state = await loop.submit(e.ChangeAsked(at=loop_now(), actor="mallory", to=to, reason=reason))
    made = state.suggestions.pending[0]
    denied = e.Denied(at=loop_now(), actor="mallory", suggestion=made.id, reason=reason)
    await loop.submit(denied)


@in_virtual_time
async def test_later_entries_do_not_repeat_the_reason_of_a_denial(tmp_path: Path) -> None:
    async with running(tmp_path, FakeEngine(BLUE, takes_s=3), FakeTraffic()) as loop:
        await reach(loop, Phase.OBSERVING, Phase.PROPOSED)
        await asyncio.sleep(5)
        for number in range(PAIRS):
            await propose_and_deny(loop, number, f"pair {number} " + "🔥" * 120)

        assert len(loop.state.outcomes) == DENIALS

    path = tmp_path / "audit.jsonl"
    lines = path.read_bytes().splitlines()
    third = [number for number, line in enumerate(lines) if b"pair 3 " in line]
    assert third[-1] - third[0] <= 4  # proposal, check, denial, and what the loop did meanwhile
    assert max(map(len, lines)) < LONGEST_ENTRY
    assert verify(path).ok


@in_virtual_time
async def test_a_denials_reason_is_in_its_entry(tmp_path: Path) -> None:
    async with running(tmp_path, FakeEngine(BLUE, takes_s=3), FakeTraffic()) as loop:
        await reach(loop, Phase.OBSERVING, Phase.PROPOSED)
        await propose_and_deny(loop, 1, "too risky before the holidays")

    records = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON).after(0, 99)
    denied = next(record for record in records if record["action"] == "suggestion.denied")
    assert denied["why"].endswith("too risky before the holidays")
    assert denied["state"] is not None
    assert "holidays" not in denied["state"]["note"]
    assert denied["state"]["outcomes"][-1]["why"] == "by mallory"


@in_virtual_time
async def test_a_flood_spends_the_share_of_its_operator_only(tmp_path: Path) -> None:
    async with running(tmp_path, FakeEngine(BLUE, takes_s=3), FakeTraffic()) as loop:
        await reach(loop, Phase.OBSERVING, Phase.PROPOSED)
        budget, pairs = loop.journal.budget, 0
        while not budget.wait_s("mallory", "chat", loop_now()):
            await propose_and_deny(loop, pairs, "🔥" * 120)
            pairs += 1
        assert 20 < pairs < PERSON_BYTES // 1024
        assert (tmp_path / "audit.jsonl").stat().st_size < PERSON_BYTES + 10 * LONGEST_ENTRY
        assert not budget.wait_s("ann", "chat", loop_now())
