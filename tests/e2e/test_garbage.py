"""A config or a journal that is not right: a clear error, and nothing that runs is touched."""

import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import flettner


@pytest.mark.parametrize("text", ["\0\0", "targets = 3"])
async def test_rejects_an_invalid_config_with_the_reason(tmp_path: Path, text: str) -> None:
    config = tmp_path / "flettner.toml"
    config.write_text(text)

    checked, problems = await flettner("check", str(config))
    ran, why = await flettner("run", "-c", str(config))

    assert (checked, ran) == (1, 2)
    assert "Traceback" not in problems + why
    assert str(config) in why


async def test_refuses_to_start_with_a_modified_journal(site: Start) -> None:
    rig = await site(SiteConfig())
    await rig.serving()
    await rig.kill(signal.SIGTERM)
    lines = rig.journal.read_bytes().splitlines(keepends=True)
    rig.journal.write_bytes(b"".join([lines[0], lines[1].replace(b"flettner", b"somebody"), *lines[2:]]))

    code, output = await flettner("run", "-c", str(rig.config))

    assert code == 2
    assert "entry 2" in output
    assert "Traceback" not in output
    assert rig.pid("chat-r1")
    assert rig.envoy.find() is not None
