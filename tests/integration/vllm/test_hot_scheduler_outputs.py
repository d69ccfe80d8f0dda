"""flettner's scheduler next to vLLM's own, in real vLLM on the CPU: equal outputs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scheduler_engine import Engine, start

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("engine")
    with start(folder) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_seeds_have_the_same_outputs(engine: Engine, seed: int, temperature: int) -> None:
    """40 requests compete for 16 slots, so the order in which they are admitted matters, too."""
    wanted = {"seed": seed, "requests": 40, "tokens": 48, "temperature": temperature}
    own, flettner = (engine.ask(**wanted, hot=hot) for hot in (0, 1))

    assert (own["schedule"], flettner["schedule"]) == ("method", "HotStep")
    assert own["outputs"] == flettner["outputs"]
    assert all(len(output) == 48 for output in own["outputs"])
    assert len({tuple(output) for output in own["outputs"]}) > 20
