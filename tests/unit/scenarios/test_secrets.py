"""Secrets are planted in every input and searched for in every output."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flettner.agent.api.documents import rollout_of, suggestion_of, target_of
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.audit.history import History
from flettner.agent.audit.records import JournalRecord
from flettner.agent.config.loader import parse_config
from flettner.agent.domain import events as e
from flettner.agent.domain.errors import ActError, ConfigError
from flettner.agent.domain.state import Phase
from flettner.agent.telemetry.journald import encode_record
from tests.support.daemon_log import daemon_log
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.fake_engine import FakeEngine
from tests.support.fast_time import in_no_time, loop_now
from tests.support.machine_stories import BLUE
from tests.unit.scenarios.test_loop import approve, reach
from tests.unit.scenarios.test_unwritable import Place

SECRETS = tuple(f"PLANTED-{n}-abcdef0123456789" for n in range(8))
KEY, HF, PASSWORD, BEARER, COOKIE, AWS, SHORT, IN_SETTING = SECRETS
LOG = (
    f"non-default args: {{'model': 'm', 'api_key': ['{KEY}'], 'max_num_seqs': 4}}",
    f"vllm serve m --api-key {KEY} --port 8000",
    f"vllm serve m --api-key={KEY}",
    f"docker run -e HF_TOKEN={HF} -e VLLM_API_KEY='{KEY}' vllm/vllm-openai",
    f'"Env": ["HUGGING_FACE_HUB_TOKEN={HF}", "AWS_SECRET_ACCESS_KEY={AWS}"]',
    f"ClientError: GET https://ann:{PASSWORD}@mirror.example/models: 404",
    f"Authorization: Bearer {BEARER}",
    f'{{"authorization": "Bearer {BEARER}", "Cookie": "session={COOKIE}"}}',
    f"OSError: 401 for hf_{SHORT.replace('-', '')} at https://huggingface.co/m",
)
SETTING = {**BLUE.setting, "api_key": IN_SETTING, "hf_token": HF}


def leaks(text: str) -> list[str]:
    return [secret for secret in (*SECRETS, SHORT.replace("-", "")) if secret in text]


@dataclass
class FailingEngine(FakeEngine):
    """Fail with all inputs in the message."""

    def __init__(self) -> None:
        super().__init__(replace(BLUE, setting=SETTING), takes_s=3)


@pytest.mark.parametrize("line", LOG)
def test_no_secret_of_an_engine_gets_into_journal_log_or_api(tmp_path: Path, line: str) -> None:
    place = Place(tmp_path, engine=FailingEngine())
    shown: list[str] = []

    async def scenario() -> None:
        async with place.running() as loop:
            await approve(loop)
            place.engine.next_error = ActError(f"chat-r1 exited with 1: {line}", LOG)
            await reach(loop, Phase.COOLDOWN)
            daemon = FakeDaemonView()
            daemon.set(loop.state)
            history = History.of(loop.journal)
            shown.append(target_of(daemon, loop, loop.state).model_dump_json())
            shown.extend(suggestion_of(s).model_dump_json() for s in history.suggestions())
            assert loop.state.rollout is not None
            shown.append(suggestion_of(loop.state.rollout.suggestion).model_dump_json())
            shown.append(rollout_of(loop.state, "chat", loop.state.rollout).model_dump_json())
            assert "exited with 1" in shown[-1]

    with daemon_log("debug") as stream:
        in_no_time(scenario())

    assert "exited with 1" in stream.getvalue()
    assert leaks(stream.getvalue()) == []
    assert leaks(place.path.read_text()) == []
    assert leaks("".join(shown)) == []
    assert leaks("".join(encode_record(record).decode("latin-1") for record in place.records())) == []


def test_each_logged_transition_pins_the_head_of_the_audit(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def scenario() -> None:
        async with place.running() as loop:
            await reach(loop, Phase.PROPOSED)

    with daemon_log("debug") as stream:
        in_no_time(scenario())

    pins = [json.loads(line) for line in stream.getvalue().splitlines() if "audit_head" in line]
    hashes = {record["seq"]: record["hash"] for record in place.records()}
    assert {"daemon.started", "suggestion.made"} <= {pin["event"] for pin in pins}
    assert all(hashes[pin["audit_seq"]] == pin["audit_head"] for pin in pins)


def test_texts_of_people_are_recorded_with_masked_secrets(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def scenario() -> list[JournalRecord]:
        async with place.running() as loop:
            await reach(loop, Phase.PROPOSED)
            suggestion = loop.state.suggestions.open[0]
            for words in LOG[:3]:
                change = e.ChangeAsked(
                    at=loop_now(), actor="ann", to={"api_key": IN_SETTING, "max_num_seqs": 8}, reason=words
                )
                with suppress(Exception):
                    await loop.submit(change)
                await reach(loop, Phase.PROPOSED)
            suggestion = loop.state.suggestions.open[0]
            await loop.submit(
                e.Approved(
                    at=loop_now(),
                    actor="ann",
                    suggestion=suggestion.id,
                    digest=suggestion.digest,
                    comment="; ".join(LOG),
                )
            )
            await loop.submit(e.Aborted(at=loop_now(), actor="ann", reason=f"the key {LOG[1]} is out"))
            await asyncio.sleep(30)
            return list(loop.journal.after(0, 1000))

    with daemon_log("debug") as stream:
        records = in_no_time(scenario())

    assert any("is out" in record["why"] for record in records)
    assert leaks(place.path.read_text() + stream.getvalue()) == []


@pytest.mark.parametrize("line", LOG)
def test_a_refusal_quotes_no_secret(line: str) -> None:
    assert leaks(RequestRefusedError(409, f"The target is halted: {line}").problem.model_dump_json()) == []


@pytest.mark.parametrize(
    "table",
    [
        f'[targets.engine]\nkind = "process"\napi_key = "{KEY}"',
        f'[targets.engine]\nkind = "docker"\nhf_token = ["{HF}"]',
        f'[targets.engine]\nkind = "process"\ncommand = ["vllm", "serve", "m", "--api-key", "{KEY}", 7]',
        f'[targets.engine]\nkind = "process"\n[targets.engine.environment]\nHF_TOKEN = ["{HF}"]',
    ],
)
def test_a_config_error_quotes_no_secret(tmp_path: Path, table: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(f'[[targets]]\nname = "chat"\n{table}\n', here=tmp_path)

    assert leaks(str(error.value)) == []
