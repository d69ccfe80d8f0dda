"""What Envoy writes about requests, and what reads it."""

import json
import re
from pathlib import Path

import pytest

from flettner.actuators.envoy import resources
from flettner.actuators.envoy.split import NAMESPACE
from flettner.clients.envoy_records import record
from flettner.clients.envoy_records.record import ATTEMPTS, NOTED, REQUESTS, Field
from flettner.primitives.address import Address
from flettner.sensors.proxy_requests.access_log import parse_record


def logs() -> dict[str, dict[str, str]]:
    """Return the fields of each log of the listener, by its tag."""
    listener = resources.listener(
        Path("/xds/rds.json"),
        target="chat",
        listen=Address("127.0.0.1", 80),
        report_every_s=2.0,
        session_header="x-session-id",
    )
    by_name: dict[str, dict[str, str]] = {}

    def collect(part: object) -> None:
        if isinstance(part, dict):
            if "tag" in part and "record" in part:
                by_name[part["tag"]] = part["record"]
            for value in part.values():
                collect(value)
        elif isinstance(part, list):
            for value in part:
                collect(value)

    collect(json.loads(json.dumps(listener)))
    return by_name


@pytest.mark.parametrize("log", [ATTEMPTS, REQUESTS])
def test_a_sensor_reads_each_log_that_the_configuration_names(log: str) -> None:
    written = logs()[record.tag_of("chat", log)]
    values = dict.fromkeys(written, "-")
    numbers = (Field.CODE, Field.DURATION_MS, Field.ATTEMPT, Field.ATTEMPTS, Field.WAITED_MS)
    values |= dict.fromkeys((*numbers, Field.TTFT_US, Field.TOKENS, Field.REQUEST_BYTES), "1")
    values[Field.SERVER] = record.cluster_name("chat", "chat-r1")

    parsed = parse_record(log, values)

    assert parsed.server == "chat-r1"
    assert parsed.of_attempt == (log == ATTEMPTS)


def test_the_lua_filter_notes_exactly_the_fields_that_the_log_reads() -> None:
    script = resources.LUA.read_text()
    noted = set(re.findall(r'note\(handle, "(\w+)"', script)) - {"lease"}

    assert noted == {str(name) for name in NOTED}
    assert f'NAMESPACE = "{NAMESPACE}"' in script


def test_the_socket_that_envoy_writes_to_is_the_one_that_the_sensor_opens(tmp_path: Path) -> None:
    home = record.envoy_home(tmp_path / "chat")

    assert str(record.records_socket(home)).encode() in resources.bootstrap(home)
    assert record.envoy_home(tmp_path / "code") == home


def test_a_tag_names_the_target_and_the_log() -> None:
    assert record.split_tag(record.tag_of("chat", REQUESTS)) == ("chat", REQUESTS)
    assert record.server_of_cluster(record.cluster_name("chat", "chat-r1")) == "chat-r1"
