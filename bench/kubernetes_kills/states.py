"""What the journal of a running daemon says about each target, read as it grows."""

import asyncio
import os
from json import loads
from pathlib import Path
from typing import Any

PHASES = ("launching", "warming", "canary", "promoting", "handover", "rolling_back", "replacing")
"""The phases of a rollout; in `handover`, a part of `promoting`, the operator's Deployment takes over."""

_LOOK_S = 0.05
RESTING = {"observing", "proposed", "cooldown"}

State = dict[str, Any]


def phase_of(state: State) -> str:
    awaited = state["effects"]["awaited"] or {}
    in_handover = state["phase"] == "promoting" and awaited.get("kind") == "retire"
    return "handover" if in_handover else str(state["phase"])


def is_at_rest(state: State) -> bool:
    rollout = state.get("rollout")
    return state["phase"] in RESTING and (rollout is None or rollout["outcome"] != "running")


class States:
    """`by_target`: the newest state of each target. Half a line, which a kill leaves, is not read."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._offset, self._inode = journal, 0, 0
        self.by_target: dict[str, State] = {}
        self.outcomes: dict[str, str] = {}  # by rollout

    async def follow(self) -> None:
        while True:
            self.read()
            await asyncio.sleep(_LOOK_S)

    def read(self) -> None:
        if not self._journal.exists():
            return
        with self._journal.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:  # the first file, or the next after a rotation
                self._inode, self._offset = inode, 0
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")
        self._offset += len(whole[0]) + len(whole[1])
        for line in whole[0].splitlines():
            self._note(loads(line))

    def _note(self, row: dict[str, Any]) -> None:
        state = row["state"]
        if state is None:
            return
        self.by_target[row["target"]] = state
        if rollout := state.get("rollout"):
            self.outcomes[rollout["id"]] = rollout["outcome"]

    def phases(self) -> dict[str, str]:
        """Return the phase of each target."""
        return {target: phase_of(state) for target, state in self.by_target.items()}
