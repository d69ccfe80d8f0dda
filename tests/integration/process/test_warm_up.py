"""Warm-up requests and golden prompts."""

from pathlib import Path

import pytest
import structlog

from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Adapter
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.quality.comparison import flaw_of
from tests.support.process_rig import SERVER, Bound


async def test_warm_up_sends_several_lengths_with_the_servers_own_key(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--api-key", "sk-secret")
    server = await engine.launch(SERVER, 60)

    await engine.warm_up(server, 12, 60)

    log = (tmp_path / "servers" / "chat-r1.log").read_text()
    lengths = [line.split()[2] for line in log.splitlines() if line.startswith("prompt of")]
    assert len(lengths) == 12
    assert set(lengths) == {"9", "65", "257"}  # of 2,048 tokens of context


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("with-500", "4 of 4 warm-up requests failed: status 500: .*the engine is dead"),
        ("with-abort", "4 of 4 .* aborted"),
        ("never", "0 of 4 warm-up requests were done within 1 s"),
    ],
)
async def test_a_failed_warm_up_reports_the_error(bound: Bound, how: str, why: str) -> None:
    engine = bound("--completes", how)
    server = await engine.launch(SERVER, 60)

    with pytest.raises(ActError, match=why):
        await engine.warm_up(server, 4, 1 if how == "never" else 60)


async def test_a_warm_up_tolerates_half_of_its_requests_failing(bound: Bound) -> None:
    engine = bound("--completes", "half")
    server = await engine.launch(SERVER, 60)

    await engine.warm_up(server, 4, 60)


async def test_a_warm_up_continues_until_compilation_ends(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--compiles", "9")
    server = await engine.launch(SERVER, 60)

    await engine.warm_up(server, 4, 60)

    log = (tmp_path / "servers" / "chat-r1.log").read_text()
    assert "during inference: kernel_9." in log
    assert log.count("prompt of") > 12  # one full round without a compilation


async def test_a_server_that_keeps_compiling_is_not_warm_at_the_deadline(bound: Bound) -> None:
    engine = bound("--compiles", "1000000")
    server = await engine.launch(SERVER, 60)

    with pytest.raises(ActError, match=r"it still compiles: .* during inference: kernel_"):
        await engine.warm_up(server, 4, 2)


async def test_a_warm_up_sends_the_operators_prompts_as_well(bound: Bound, tmp_path: Path) -> None:
    engine = bound()
    server = await engine.launch(SERVER, 60)

    await engine.warm_up(server, 6, 60, ["a b c d", "e"])

    log = (tmp_path / "servers" / "chat-r1.log").read_text().splitlines()
    assert sorted(line for line in log if line.startswith("prompt of")) == [
        *("prompt of 2 words", "prompt of 257 words", "prompt of 5 words", "prompt of 5 words"),
        *("prompt of 65 words", "prompt of 9 words"),
    ]


async def test_the_prefixes_of_clients_prompts_are_sent_for_each_name_the_first_one_last(
    bound: Bound, tmp_path: Path
) -> None:
    engine = bound()
    server = await engine.launch(SERVER, 60)
    await engine.put_adapters(server, [Adapter(name="sql", path="/adapters/sql")])
    prefixes = (
        SharedPrefix(text="You are kind.", chat=True),
        SharedPrefix(text="SELECT", model="sql"),
    )

    await engine.warm_up(server, 2, 60, (), prefixes)

    log = (tmp_path / "servers" / "chat-r1.log").read_text().splitlines()
    assert "prompt for sql" in log, "its weights are loaded before a client asks for it"
    first, *others = [line for line in log if line.startswith("prefix of")]
    assert first == "prefix of /v1/completions for sql: SELECT"
    assert sorted(others) == [
        "prefix of /v1/chat/completions for sql: You are kind.",
        "prefix of /v1/chat/completions for stub: You are kind.",
    ]


async def test_a_green_that_does_not_answer_for_an_adapter_is_not_warm(bound: Bound) -> None:
    engine = bound()
    server = await engine.launch(SERVER, 60)
    await engine.put_adapters(server, [Adapter(name="sql", path="/adapters/gone")])

    with pytest.raises(ActError, match="lists the adapter sql and does not answer for it: status 404"):
        await engine.warm_up(server, 2, 60)


async def test_an_adapter_that_never_answers_is_named_as_the_reason(bound: Bound) -> None:
    engine = bound()
    server = await engine.launch(SERVER, 60)
    await engine.put_adapters(server, [Adapter(name="sql", path="/adapters/asleep")])

    with pytest.raises(ActError, match="its adapters did not all answer within the 3 s"):
        await engine.warm_up(server, 2, 3)


async def test_prefixes_that_are_refused_or_late_do_not_end_a_warm_up(bound: Bound) -> None:
    engine = bound("--completes", "half")
    server = await engine.launch(SERVER, 60)
    many = tuple(SharedPrefix(text=f"{number}") for number in range(4))

    with structlog.testing.capture_logs() as said:
        await engine.warm_up(server, 4, 60, (), many)

    assert [each for each in said if each["event"] == "warm_up.prefixes_missing"]


async def test_golden_answers_include_log_probabilities(bound: Bound) -> None:
    engine = bound("--api-key", "sk-secret")
    server = await engine.launch(SERVER, 60)

    [answer] = await engine.answers(server, ["one"], 60)

    assert (answer.text, answer.finish_reason, answer.length) == (" so it is", "length", 3)
    assert (answer.tokens, answer.logprobs) == ((" so", " it", " is"), (-0.5, -0.25, 0.0))


@pytest.mark.parametrize(
    ("how", "flaws", "has_logprobs"),
    [("plainly", {""}, False), ("with-500", {"failed"}, False), ("with-abort", {"failed"}, True)],
)
async def test_reports_an_invalid_golden_answer(
    bound: Bound, how: str, flaws: set[str], has_logprobs: bool
) -> None:
    engine = bound("--completes", how)
    server = await engine.launch(SERVER, 60)

    answers = await engine.answers(server, ["one", "two"], 60)

    assert {flaw_of(answer) for answer in answers} == flaws
    assert all(bool(answer.logprobs) is has_logprobs for answer in answers)


async def test_unanswered_golden_prompts_are_an_error_at_the_deadline(bound: Bound) -> None:
    engine = bound("--completes", "never")
    server = await engine.launch(SERVER, 60)

    with pytest.raises(ActError, match="2 golden prompts were not answered within 1 s"):
        await engine.answers(server, ["one", "two"], 1)
