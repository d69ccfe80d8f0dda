"""trimtab's scheduler next to vLLM's own, in real vLLM on the CPU: equal outputs."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.hot_scheduler.engine import Engine, start

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

Engines = tuple[Engine, Engine]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    folder: Path = tmp_path_factory.mktemp("engines")
    with ExitStack() as stack:
        own, trimtab = (stack.enter_context(start(name, folder / name)) for name in ("own", "trimtab"))
        yield own, trimtab


def test_only_one_of_the_engines_has_the_class(engines: Engines) -> None:
    own, trimtab = engines
    assert (own.about["schedule"], trimtab.about["schedule"]) == ("method", "HotStep")


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_seeds_have_the_same_outputs(engines: Engines, seed: int, temperature: int) -> None:
    """40 requests compete for 16 slots, so the order in which they are admitted matters, too."""
    own, trimtab = (
        engine.ask(seed=seed, requests=40, tokens=48, temperature=temperature)["outputs"]
        for engine in engines
    )

    assert own == trimtab
    assert all(len(output) == 48 for output in own)
    assert len({tuple(output) for output in own}) > 20
