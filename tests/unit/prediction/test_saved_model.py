"""A restart of the daemon keeps load and law, unless they are of other servers or too old."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flettner.agent.domain.prediction_check import LawDrop
from flettner.agent.prediction.learned import TRACE_S, FittedLaw
from flettner.agent.prediction.saved_model import (
    PastLoad,
    PastSteps,
    SavedModel,
    decode,
    encode,
    join_load,
    law_key,
    packed,
)
from flettner.agent.runtime.model_file import ModelFile
from flettner.performance_model.acceptance import Acceptance
from flettner.performance_model.log_clock import BusySpan
from flettner.performance_model.packed_trace import PackedTrace, pack
from flettner.performance_model.step_law import widen
from flettner.performance_model.trace import TraceRequest
from flettner.performance_model.work_windows import WorkWindow
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Setting
from tests.support.fast_time import NOON
from tests.support.learned import LAW
from tests.support.sampling import sampled
from tests.unit.prediction.virtual_target import LOG, SETTING, VirtualTarget, teach

pytestmark = pytest.mark.anyio


def trace(*arrivals_s: float) -> PackedTrace:
    return pack(TraceRequest(arrival_s=at_s, prompt_tokens=9, output_tokens=3) for at_s in arrivals_s)


CASE = ServeConfig(setting=SETTING, card=find_gpu("RTX 4090"), version="0.32.0")
STEP = WorkWindow(seconds=0.5, steps=20, sizes=((64.0, 19.0), (512.0, 1.0)), sequences=1300, kv_read=9e5)
SPAN = BusySpan(wall_s=1.0, error_s=0.01, work=replace(STEP, seconds=0.97))
SAVED = SavedModel(
    at=NOON,
    target="chat",
    key=law_key(CASE),
    load=PastLoad(seconds=300.0, arrivals_s=(1.5,), prompts=(500,), outputs=(200,), cached=(0,)),
    counts_from="records",
    kv_tokens=41_408,
    outside_s=0.002,
    steps=PastSteps(logged=(STEP,) * 3, busy=(SPAN,) * 60, last=2399),
    laws=(
        FittedLaw(
            law=widen(LAW, common=0.1, each=0.1, count=8, seed=1), source="histograms", rows=3, until_s=9.0
        ),
    ),
    acceptance=Acceptance(itl=(0.01,) * 5, ttft=(-0.1,) * 5),
    why_no_law="",
)


@pytest.mark.parametrize("setting", sampled([SETTING, LOG], 2))
async def test_after_a_restart_law_and_load_are_there_at_once_and_stay(
    tmp_path: Path, setting: Setting
) -> None:
    target = await teach(setting, folder=tmp_path)
    before = target.model

    target.start_daemon()
    await target.live(1)
    first = target.models[-1]
    await target.live(6)

    assert first.law is not None
    assert first.law.law.step_us == pytest.approx(before.law.law.step_us if before.law else 0, rel=0.05)
    assert first.rows >= 0.9 * before.rows
    assert len(first.trace) > len(before.trace)
    assert all(model.law is not None for model in target.models[-6:])
    assert target.model.acceptance is not None
    assert target.model.acceptance != before.acceptance  # later windows were predicted too
    assert target.model.trace[-1].arrival_s <= TRACE_S


async def test_without_the_file_the_law_is_lost(tmp_path: Path) -> None:
    target = await teach(folder=tmp_path)

    target.file = None
    target.start_daemon()
    await target.live(1)

    assert target.model.law is None


async def test_other_kernels_mean_another_law(tmp_path: Path) -> None:
    target = await teach(folder=tmp_path)

    target.replace_server({**SETTING, "enforce_eager": True}, target.gpu)
    target.start_daemon()
    with capture_logs() as logs:
        await target.live(1)

    assert target.model.law is None
    assert "for other flags" in next(log["why"] for log in logs if log["event"] == "prediction.file_ignored")


async def test_a_law_that_was_dropped_after_the_last_writing_stays_dropped(tmp_path: Path) -> None:
    target = await teach(folder=tmp_path)

    target.law_drop = LawDrop(at=target.now(), why="3 of the last 5 predictions missed their bands")
    target.start_daemon()
    await target.live(2)

    assert target.model.law is None
    assert target.model.trace[-1].arrival_s > 500  # the load is still the same
    assert "dropped" in target.model.why_no_law


def test_a_file_is_for_one_law_alone(tmp_path: Path) -> None:
    file = ModelFile(path=tmp_path / "model.json", now=lambda: NOON + timedelta(minutes=14))
    file.write(encode(SAVED))
    file.read("chat")

    others = (
        replace(CASE, version="0.33.0"),
        replace(CASE, card=find_gpu("H100")),
        replace(CASE, card=None),
        replace(CASE, setting={**SETTING, "quantization": "fp8"}),
    )
    assert [file.take(other) for other in others] == [None] * 4
    assert file.take(replace(CASE, setting={**SETTING, "max_num_seqs": 7})) == SAVED
    assert file.take(CASE) is None


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("it has version 1", encode(replace(SAVED, version=1))),
        ("of the target other", encode(replace(SAVED, target="other"))),
        ("written on", encode(replace(SAVED, at=NOON - timedelta(minutes=16)))),
        ("written on", encode(replace(SAVED, at=NOON + timedelta(hours=1)))),  # the clock was set back
        ("differ in length", encode(replace(SAVED, load=replace(SAVED.load, prompts=(1, 2))))),
        ("JSON", encode(SAVED)[:-50]),
        ("kv_tokens: Field required", encode(SAVED).replace(b'"kv_tokens"', b'"tokens"')),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_refused_with_the_reason(reason: str, text: bytes) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(text, "chat", NOON + timedelta(seconds=30))


async def test_a_folder_that_is_gone_costs_only_the_file(tmp_path: Path) -> None:
    target = VirtualTarget(file=tmp_path / "gone" / "model.json")

    with capture_logs() as logs:
        await target.live(3)

    assert [log["event"] for log in logs].count("prediction.file_unwritable") == 1


def test_the_load_before_the_start_goes_on_without_the_time_between() -> None:
    before = join_load(None, trace(1.0, 500.0), 600.0, 1)

    joined = join_load(before, trace(0.0, 399.0), 400.0, 1)

    assert joined.seconds == TRACE_S
    assert joined.arrivals_s == (400.0, 500.0, 899.0)
    assert len(packed(joined)) == 3


def test_another_number_of_servers_begins_another_load() -> None:
    before = PastLoad(seconds=600.0, servers=2, arrivals_s=(5.0,), prompts=(1,), outputs=(1,), cached=(0,))

    assert join_load(before, trace(1.0), 60.0, 3).arrivals_s == (1.0,)
