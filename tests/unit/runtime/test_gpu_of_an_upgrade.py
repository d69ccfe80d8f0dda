"""What is known of a release and of the memory depends on the GPU, which a preflight is told."""

import pytest

from flettner.agent.domain.effects import Preflight
from flettner.agent.domain.events import Event, Preflighted
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import Gpu
from flettner.agent.domain.state import State
from flettner.agent.machine.transitions import find_gpu_model
from flettner.agent.runtime.effect_runner import EffectRunner
from flettner.policies.conformance.readings import a_reading
from flettner.vllm_facts.values import Setting
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import loop_now

SMALL, LARGE = "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"
BLUE = Server(name="chat-r1", address="127.0.0.1:8101", setting={"model": SMALL, "max_model_len": 8192})
TWO = tuple(
    Gpu(index=at, uuid=f"GPU-{at}", name=name) for at, name in enumerate(("NVIDIA L4", "NVIDIA H100 PCIe"))
)


async def notes_of(to: Setting, gpu: str, start: Setting | None = None) -> tuple[FakeEngine, tuple[str, ...]]:
    engine, heard = FakeEngine(BLUE), list[Event]()
    runner = EffectRunner(
        engine=engine,
        traffic=FakeTraffic(),
        emit=heard.append,
        now=loop_now,
        epoch=1,
        find_gpu=lambda: gpu,
    )
    setting = {**BLUE.setting, **to}
    await runner.perform(
        Preflight(number=1, servers=(BLUE,), setting=setting, start=start or {}, wanted="auto")
    )
    (event,) = heard
    assert isinstance(event, Preflighted)
    return engine, event.preflight.notes


@pytest.mark.parametrize(
    ("to", "gpu", "said"),
    [
        ({"model": LARGE}, "L4", "it does not fit: weights take 61.0 GiB"),
        ({"model": LARGE}, "H100 80GB", "it fits: weights take 61.0 GiB"),
    ],
)
async def test_another_model_is_held_against_the_memory_of_the_gpu(to: Setting, gpu: str, said: str) -> None:
    engine, notes = await notes_of(to, gpu)

    assert engine.gpu == gpu
    assert notes[0].startswith(f"memory, by an estimate: {said}"), notes


async def test_another_release_is_too() -> None:
    _, notes = await notes_of({}, "L4", {"image": "vllm/vllm-openai:v0.33.0"})

    assert notes[0].startswith("memory, by an estimate: it fits"), notes


@pytest.mark.parametrize(
    ("to", "gpu"),
    [
        ({"max_num_seqs": 8}, "L4"),
        ({"model": LARGE}, ""),
        ({"model": LARGE}, "cpu"),
        ({"model": "no/one"}, "L4"),
    ],
)
async def test_nothing_is_said_of_other_changes_or_of_what_is_not_known(to: Setting, gpu: str) -> None:
    _, notes = await notes_of(to, gpu)

    assert notes == ()


@pytest.mark.parametrize(
    ("gpus", "given", "cpus", "found"),
    [
        (TWO[:1], "", False, "NVIDIA L4"),
        (TWO[:1], "H100 80GB", False, "NVIDIA L4"),
        ((), "H100 80GB", False, "H100 80GB"),
        (TWO, "", False, ""),
        ((), "", False, ""),
        (TWO[:1], "", True, "cpu"),
    ],
    ids=["measured", "measured before given", "given", "several", "unknown", "on CPUs"],
)
def test_the_gpu_is_the_measured_one_or_the_given_one(
    gpus: tuple[Gpu, ...], given: str, found: str, *, cpus: bool
) -> None:
    blue = Server(name="chat-r1", address="127.0.0.1:8101", setting={"model": SMALL}, on_cpus=cpus)
    state = State(target="chat", fleet=Fleet(servers=(blue,)))

    assert find_gpu_model(state, a_reading(gpus=gpus), given) == found


def test_without_a_server_no_gpu_is_known() -> None:
    assert find_gpu_model(State(target="chat"), None, "L4") == ""
