"""The environment of another user's process makes it no server of ours, and fences no daemon out."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flettner.actuators.host import ownership_env, procfs
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.process_rig import SERVER, Bound, pids, site

pytestmark = [pytest.mark.smoke, pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users")]
ANOTHER = 12345


@contextmanager
def marked_by_another(of: Site, name: str, epoch: int) -> Iterator[int]:
    env = {**ownership_env.marks(of, name), "FLETTNER_EPOCH": str(epoch)}
    process = subprocess.Popen(["/bin/sleep", "600"], env=env, user=ANOTHER, start_new_session=True)
    while procfs.words(process.pid)[:1] != ["/bin/sleep"]:
        assert process.poll() is None
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def test_a_mark_of_another_user_counts_for_nothing(bound: Bound, tmp_path: Path) -> None:
    engine = bound(epoch=3)
    await engine.launch(SERVER, 60)

    with (
        marked_by_another(site(tmp_path), "chat-r7", 5) as foreign,
        marked_by_another(site(tmp_path), SERVER.name, 6),
    ):
        servers, newest = await engine.observe(), await engine.newest_epoch()
        members = pids(tmp_path)
        again = await engine.launch(Server(name="chat-r2", setting={}), 60)
        await engine.retire(again)
        await engine.retire(Server(name="chat-r7", setting={}))
        survives = procfs.process(foreign)

    assert [server.name for server in servers] == [SERVER.name]
    assert newest == 3
    assert all(procfs.user_of(pid) == {0} for pid in members)
    assert survives is not None
    assert not survives.zombie


async def test_a_server_that_its_command_gives_to_another_user_stays_ours(
    tmp_path: Path, bound: Bound
) -> None:
    engine = bound()
    with marked_by_another(site(tmp_path), SERVER.name, 1) as pid:
        process = procfs.process(pid)
        assert process
        note = ownership_env.OwnershipNote(
            pid=pid, started=process.started, argv=("vllm", "serve", "m"), port=1, epoch=1
        )
        ownership_env.prepare_folder(site(tmp_path))
        ownership_env.write_note(site(tmp_path), SERVER.name, note)

        assert [server.name for server in await engine.observe()] == [SERVER.name]
        assert pids(tmp_path) == {pid}
        ownership_env.drop_note(site(tmp_path), SERVER.name)


@pytest.mark.parametrize("text", ["999999999999999999", "1000000001", "-1", "", "²"])
def test_an_epoch_that_no_daemon_can_have_reached_is_none(text: str) -> None:
    assert ownership_env.epoch_in(text) == 0
