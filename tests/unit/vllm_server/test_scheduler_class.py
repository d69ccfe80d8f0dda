"""What a new server needs for the scheduler class that its flags name."""

from pathlib import Path

import pytest

import flettner.flettner_vllm.scheduler
from flettner.actuators.vllm.scheduler_class import SchedulerFolders, is_missing, write_folders
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.live_limits import CONTROL, SCHEDULER_CLASS

NAMED = {"scheduler_cls": SCHEDULER_CLASS}


@pytest.mark.parametrize(
    ("setting", "env", "missing"),
    [
        (NAMED, {}, True),
        (NAMED, {CONTROL: "/run/vllm/control.sock"}, False),
        ({"scheduler_cls": "other.Scheduler"}, {}, False),
        ({}, {}, False),
    ],
    ids=["named", "with a socket of its owner's", "another class", "none"],
)
def test_it_is_missing_where_only_the_flags_name_it(
    setting: dict[str, str], env: dict[str, str], missing: bool
) -> None:
    assert is_missing(setting, env) == missing


def test_the_files_are_those_of_this_release_and_any_user_of_a_container_may_read_them(
    tmp_path: Path,
) -> None:
    site = Site(target="chat", state_dir=tmp_path, epoch=1)
    stale = tmp_path / "scheduler" / "flettner_vllm" / "scheduler.py"
    stale.parent.mkdir(parents=True, mode=0o700)
    stale.write_text("an older release")

    folders = write_folders(site)

    assert stale.read_bytes() == Path(flettner.flettner_vllm.scheduler.__file__).read_bytes()
    assert [
        path.stat().st_mode & 0o777 for path in (folders.package, stale.parent, stale, folders.sockets)
    ] == [
        0o755,
        0o755,
        0o644,
        0o777,
    ]


def test_the_environment_keeps_the_python_path() -> None:
    folders = SchedulerFolders(Path("/p"), Path("/s"))

    assert folders.add_to({"PYTHONPATH": "/app", "A": "1"}, "chat-r1") == {
        "A": "1",
        "PYTHONPATH": "/p:/app",
        CONTROL: "/s/chat-r1.sock",
    }
    assert folders.add_to({}, "chat-r1")["PYTHONPATH"] == "/p"
