"""A suggestion, for states and rollouts that need one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.suggestion import Suggestion

_AT = datetime(2030, 1, 1, 12, tzinfo=UTC)
MADE = Suggestion(
    id="chat-s1",
    target="chat",
    policy="seqs",
    proposal=Proposal(
        rule="Q1",
        to={"max_num_seqs": 8},
        why="3 requests wait",
        expects="fewer requests wait",
        risks="more KV cache is used",
        source="vllm-project/vllm#1",
    ),
    before={"max_num_seqs": 4},
    base="sha256:00",
    notes=(),
    made_at=_AT,
    expires_at=_AT + timedelta(hours=1),
    digest="sha256:01",
)


def approved(id_: str = "chat-s1", **changes: Any) -> Suggestion:  # noqa: ANN401 - fields of a suggestion
    return replace(MADE, id=id_, status="approved", decided_by="alice", **changes)
