from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.system.rig import Rig
from tests.system.wishes import Wishes


class Start(Protocol):
    async def __call__(self, wishes: Wishes, /, *words: str) -> Rig: ...


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Start]:
    """Makes sites whose daemon runs, with `words` on its command line; after the test nothing is left."""
    made: list[Rig] = []

    async def start(wishes: Wishes, /, *words: str) -> Rig:
        home = tmp_path / str(len(made))
        home.mkdir()
        rig = Rig(home=home, wishes=wishes)
        made.append(rig)
        rig.prepare()
        await rig.start(*words)
        return rig

    yield start
    for rig in made:
        await rig.tear_down()
