"""Two containers of two targets that have the same control socket in a folder that both mount."""

from pathlib import Path
from tempfile import TemporaryDirectory

from structlog.testing import capture_logs

from flettner.vllm_facts.live_limits import CONTROL, SCHEDULER_CLASS
from tests.support.docker_engine_rig import EngineRig


async def test_only_the_container_that_listens_at_the_socket_has_hot_knobs(here: EngineRig) -> None:
    with TemporaryDirectory() as folder:  # pytest's own is longer than the path of a socket may be
        first, second = [
            await here.bench.serving(
                *("--scheduler-cls", SCHEDULER_CLASS),
                name=name,
                env={CONTROL: "/run/vllm/control.sock"},
                binds=[f"{folder}:/run/vllm"],
            )
            for name in ("first", "second")
        ]
        chat, code = (
            here.engine(container.name, state_dir=Path(folder, container.name))
            for container in (first, second)
        )
        [owner] = await chat.observe()
        with capture_logs() as logs:
            [other] = await code.observe()

    assert owner.hot is not None
    assert other.hot is None
    [line] = logs
    assert line["server"] == second.name
    assert f"the container {first.name} listens at {folder}/control.sock" in line["why"]
