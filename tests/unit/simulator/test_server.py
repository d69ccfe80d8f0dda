"""The server over real sockets: answers, errors, disconnects and shutdown."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientSession

from flettner.performance_model.iteration_log import parse_iterations
from tests.unit.simulator.running import process, running, scrape, until

ONE = '{engine="0",model_name="tiny"}'


async def ask(url: str, path: str, **body: object) -> tuple[int, dict[str, Any]]:
    async with (
        ClientSession() as session,
        session.post(f"{url}/v1/{path}", json={"model": "tiny", **body}) as got,
    ):
        return got.status, await got.json()


async def events(url: str, path: str, **body: object) -> list[Any]:
    """Return the data of the events of a stream; the last is `[DONE]`."""
    async with (
        ClientSession() as session,
        session.post(f"{url}/v1/{path}", json={"model": "tiny", "stream": True, **body}) as got,
    ):
        assert got.headers["Content-Type"].startswith("text/event-stream")
        lines = (await got.text()).splitlines()
    data = [line.removeprefix("data: ") for line in lines if line]
    return [piece if piece == "[DONE]" else json.loads(piece) for piece in data]


async def test_a_completion_is_streamed_token_by_token() -> None:
    options = {"include_usage": True}
    async with running() as server:
        *tokens, usage, done = await events(
            server.url,
            "completions",
            prompt="hello world",
            max_tokens=5,
            ignore_eos=True,
            stream_options=options,
        )

    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 4 + ["length"]
    assert all(event["choices"][0]["text"] for event in tokens)
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert usage["choices"] == []
    assert done == "[DONE]"


async def test_a_chat_stream_starts_with_the_role() -> None:
    async with running() as server:
        opening, first, *_rest = await events(
            server.url, "chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=2
        )

    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"


async def test_the_same_prompt_and_seed_give_the_same_text_with_or_without_streaming() -> None:
    body = {"prompt": "tell me", "max_tokens": 8, "ignore_eos": True}
    async with running() as first, running() as second, running("--seed", "5") as third:
        _, whole = await ask(first.url, "completions", **body)
        *streamed, _done = await events(second.url, "completions", **body)
        _, other = await ask(third.url, "completions", **body)
    text = whole["choices"][0]["text"]

    assert text == "".join(event["choices"][0]["text"] for event in streamed)
    assert text != other["choices"][0]["text"]


async def test_without_ignore_eos_an_answer_stops_by_itself() -> None:
    async with running() as server:
        _, answer = await ask(server.url, "completions", prompt="tell me", max_tokens=2000)

    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 256


async def test_a_later_turn_hits_the_prefix_cache() -> None:
    messages = [{"role": "user", "content": "q" * 300}]
    async with running() as server:
        for _ in range(3):
            _, answer = await ask(
                server.url, "chat/completions", messages=messages, max_tokens=100, ignore_eos=True
            )
            messages.append(answer["choices"][0]["message"])
            messages.append({"role": "user", "content": "and then?"})
        seen = await scrape(server.url)

    # turn 2 hits the prompt and answer of turn 1 (176 of 183 tokens), turn 3 also those of turn 2
    assert seen[f"vllm:prefix_cache_hits_total{ONE}"] > 400


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"prompt": "x" * 40_000, "max_tokens": 4}, 400, "maximum context length is 8192 tokens"),
        ({"prompt": "x", "max_tokens": 9000}, 400, "you requested 9000 output tokens"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0"),
        ({"prompt": "x", "model": "other"}, 404, "The model `other` does not exist"),
        ({"prompt": ["a", "b"]}, 400, "prompt must be one"),
    ],
    ids=["too long", "too much", "nothing", "model", "batch"],
)
async def test_a_bad_request_gets_the_error_message_of_vllm(
    body: dict[str, Any], status: int, words: str
) -> None:
    async with running() as server:
        got, answer = await ask(server.url, "completions", **body)

    assert got == status
    assert words in answer["error"]["message"]
    assert answer["error"]["code"] == status


async def test_garbage_is_rejected_and_the_server_keeps_running() -> None:
    async with running() as server, ClientSession() as session:
        async with session.post(f"{server.url}/v1/completions", data=b'{"prompt') as got:
            assert got.status == 400
        async with session.get(f"{server.url}/v1/models") as got:
            models = await got.json()

    assert models["data"][0]["id"] == "tiny"
    assert models["data"][0]["max_model_len"] == 8192


async def test_headers_come_before_the_first_token() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 5, "stream": True}
    async with (
        running("--sim-fault", "*:hang_after=0") as server,
        ClientSession() as session,
        session.post(f"{server.url}/v1/completions", json=body) as got,
    ):
        assert got.status == 200


async def test_a_disconnected_client_frees_its_slot() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    async with running("--max-num-seqs", "1") as server:
        scheduler = server.engine.scheduler
        async with ClientSession() as session, session.post(f"{server.url}/v1/completions", json=body) as got:
            await got.content.readline()
            assert len(scheduler.running) == 1
        await until(lambda: not scheduler.running)
        seen = await scrape(server.url)

    assert scheduler.cache.used_share == 0
    assert seen['vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}'] == 0


async def test_a_full_queue_answers_503_and_counts_it() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    async with running("--max-num-queued-reqs", "1") as server, ClientSession() as session:
        async with session.post(f"{server.url}/v1/completions", json=body):
            status, answer = await ask(server.url, "completions", prompt="x")
        seen = await scrape(server.url)

    assert status == 503
    assert "currently busy" in answer["error"]["message"]
    assert seen['vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}'] == 1


async def test_an_api_key_protects_only_v1() -> None:
    async with running("--api-key", "secret") as server, ClientSession() as session:
        async with session.get(f"{server.url}/v1/models") as got:
            assert got.status == 401
        async with session.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer secret"}) as got:
            assert got.status == 200
        async with session.get(f"{server.url}/health") as got:
            assert got.status == 200


async def test_stream_interval_groups_tokens() -> None:
    async with running("--stream-interval", "4") as server:
        *tokens, _done = await events(server.url, "completions", prompt="x", max_tokens=12, ignore_eos=True)

    assert [event["choices"][0]["text"].count(" ") for event in tokens] == [1, 3, 4, 4]


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("--swap-space", "4"), 2, "unrecognized arguments: --swap-space"),
        (("--max-num-batched-tokens", "4", "--max-num-seqs", "8"), 1, "ValidationError: 1 validation error"),
        (("--gpu-memory-utilization", "0.97"), 1, "CUDA out of memory occurred when warming up sampler"),
        (
            ("--sim-fault", "max_num_seqs=7:exit", "--max-num-seqs", "7"),
            1,
            "Engine core initialization failed",
        ),
    ],
    ids=["unknown", "invalid", "oom", "fault"],
)
async def test_a_failed_start_exits_like_vllm(argv: tuple[str, ...], code: int, words: str) -> None:
    async with process(*argv, ready=False) as server:
        out, _ = await server.process.communicate()

    assert server.process.returncode == code
    assert words in out.decode()


async def test_the_log_has_the_given_flags_and_the_ready_line() -> None:
    async with process("--max-num-seqs", "4") as server:
        log = "".join(server.lines)

    assert "'max_num_seqs': 4," in log
    assert "GPU KV cache size:" in log
    assert log.rstrip().endswith("INFO:     Application startup complete.")


async def test_sigterm_aborts_running_requests_and_exits_0() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    async with process() as server, ClientSession() as session:
        async with session.post(f"{server.url}/v1/completions", json=body) as got:
            await got.content.readline()
            server.process.terminate()
            with pytest.raises(Exception, match=r"(?i)payload|reset|disconnect"):
                await got.read()
        code = await asyncio.wait_for(server.process.wait(), 20)

    assert code == 0


async def test_a_drain_finishes_running_requests_and_aborts_new_ones() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}
    async with process("--shutdown-timeout", "60") as server, ClientSession() as session:
        async with session.post(f"{server.url}/v1/completions", json=body) as got:
            await got.content.readline()
            server.process.terminate()
            await server.wait_for("draining in-flight requests count=1")
            async with session.get(f"{server.url}/health") as health:
                assert health.status == 200
            status, answer = await ask(server.url, "completions", prompt="late")
            rest = await got.text()
        code = await asyncio.wait_for(server.process.wait(), 20)

    assert (status, answer["choices"][0]["finish_reason"], answer["choices"][0]["text"]) == (200, "abort", "")
    assert '"finish_reason":"length"' in rest
    assert rest.rstrip().endswith("data: [DONE]")
    assert code == 0


async def test_steps_are_logged_in_vllms_words_only_where_asked_for() -> None:
    async with process("--enable-logging-iteration-details") as server:
        await ask(server.url, "completions", prompt=[1, 2, 3, 4], max_tokens=2, ignore_eos=True)
        await server.wait_for(r"Iteration\(2\)")
    async with process() as silent:
        await ask(silent.url, "completions", prompt=[1, 2, 3, 4], max_tokens=2, ignore_eos=True)
        silent.process.terminate()
        await silent.wait_for("shutdown triggered")

    prompt, token = parse_iterations(server.lines)
    assert (prompt.prefill_tokens, prompt.decodes) == (4, 0)
    assert (token.prefill_tokens, token.decodes) == (0, 1)
    assert not list(parse_iterations(silent.lines))
