"""A server starts with another program, another environment or another model."""

import os
import sys
from pathlib import Path

import pytest

from flettner.actuators.host import ownership_env, procfs
from flettner.actuators.host.origin import Origin
from flettner.actuators.vllm.arg_check import MARK
from flettner.actuators.vllm.server_state import STORE
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.upgrade import start_in
from flettner.vllm_facts.values import Setting
from tests.support.process_rig import STUB, Bound, site

pytestmark = pytest.mark.smoke


def install(folder: Path, version: str, check: str = '{"ok": true}', torch: str = "") -> str:
    """Install the stub as the vllm of an environment of its own, and return its path.

    `check`: what its vLLM says of any flags, as JSON. `torch`: the version of its torch.
    """
    (folder / "bin").mkdir(parents=True)
    vllm, python = folder / "bin" / "vllm", folder / "bin" / "python"
    vllm.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {STUB[1]} "$@"\n')
    answers = f'echo \'{MARK}{{"vllm": "{version}", "cache": "", "answers": [{check}]}}\''
    says = f"echo {version}; echo {torch}"
    python.write_text(f'#!/bin/sh\nif [ "$1" = -I ]; then {says}; else {answers}; fi\n')
    for program in (vllm, python):
        program.chmod(0o755)
    return str(vllm)


def environment(state_dir: Path, name: str) -> dict[str, str]:
    return procfs.environment(ownership_env.marked(site(state_dir))[name].process.pid)


async def test_green_runs_with_what_the_upgrade_names_and_blue_stays(bound: Bound, tmp_path: Path) -> None:
    old, new = install(tmp_path / "old", "0.32.0"), install(tmp_path / "new", "0.33.0")
    env = {"PATH": f"{Path(old).parent}:/bin", "A": "1"}
    engine = bound(command=(old, "serve", "--model", "m"), env=env)
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)
    start: Setting = {"command": new, "env.A": None, "env.B": "2"}
    setting: Setting = {"model": "n", "max_num_seqs": 2}

    result = await engine.preflight([blue], setting, "surge", start)
    green = await engine.launch(Server(name="chat-r2", setting=setting, start=start, like=blue.name), 60)

    assert result.problem == ""
    assert result.resolved == {"command": (old, new), "env.A": ("1", None), "env.B": (None, "2")}
    assert result.versions == {"vLLM": ("0.32.0", "0.33.0")}
    seen = environment(tmp_path, "chat-r2")
    assert (seen.get("A"), seen["B"], seen["PATH"]) == (None, "2", f"{Path(new).parent}:/bin")
    assert green.setting == setting
    assert environment(tmp_path, "chat-r1")["A"] == "1"
    running = ownership_env.marked(site(tmp_path))
    assert running["chat-r1"].argv[:2] == (old, "serve")
    assert running["chat-r2"].argv[:2] == (new, "serve")


async def test_the_flags_of_green_are_those_of_its_release(bound: Bound, tmp_path: Path) -> None:
    old, new = install(tmp_path / "old", "0.12.0"), install(tmp_path / "new", "0.33.0")
    engine = bound(command=(old, "serve", "--model", "m"))
    present: Setting = {"model": "m", "cuda_graph_sizes": 4}
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)

    result = await engine.preflight([blue], present, "surge", {"command": new})
    unknown = await engine.preflight(
        [blue], {**present, "enable_prompt_adapter": True}, "surge", {"command": new}
    )

    assert result.problem == ""
    assert result.resolved == {
        "command": (old, new),
        "cuda_graph_sizes": (4, None),
        "cudagraph_capture_sizes": (None, 4),
    }
    assert "--enable-prompt-adapter" in unknown.problem


async def test_a_flag_that_the_older_release_has_as_a_variable_is_set_there(
    bound: Bound, tmp_path: Path
) -> None:
    new, old = install(tmp_path / "new", "0.24.0"), install(tmp_path / "old", "0.10.0")
    engine = bound(command=(new, "serve", "--model", "m"))
    present: Setting = {"model": "m", "attention_backend": "FLASHINFER"}
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)

    down = await engine.preflight([blue], present, "surge", {"command": old})
    to = {name: value for name, (_, value) in down.resolved.items()}
    await engine.launch(
        Server(name="chat-r2", setting={"model": "m"}, start=start_in(to), like=blue.name), 60
    )

    assert down.problem == ""
    assert to == {"command": old, "attention_backend": None, "env.VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    assert environment(tmp_path, "chat-r2")["VLLM_ATTENTION_BACKEND"] == "FLASHINFER"


async def test_another_cuda_is_named(bound: Bound, tmp_path: Path) -> None:
    old = install(tmp_path / "old", "0.32.0", torch="2.9.1+cu129")
    new = install(tmp_path / "new", "0.33.0", torch="2.10.0+cu130")
    engine = bound(command=(old, "serve", "--model", "m"))
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)

    result = await engine.preflight([blue], {"model": "m"}, "surge", {"command": new})

    assert result.versions == {"vLLM": ("0.32.0", "0.33.0"), "CUDA": ("12.9", "13.0")}


async def test_answers_that_the_server_stores_are_said_before_it_is_replaced(
    bound: Bound, tmp_path: Path
) -> None:
    program = install(tmp_path / "old", "0.32.0")
    engine = bound(command=(program, "serve", "--model", "m"), env={STORE: "1"})
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)

    result = await engine.preflight([blue], {"model": "m", "max_num_seqs": 2}, "surge")

    assert any("previous_response_id gets 404" in note for note in result.notes)


@pytest.mark.parametrize(("gpu", "shown"), [("NVIDIA RTX PRO 6000", True), ("NVIDIA H100 80GB HBM3", False)])
async def test_the_regressions_of_a_release_are_those_of_the_gpu(
    bound: Bound, tmp_path: Path, gpu: str, *, shown: bool
) -> None:
    old, new = install(tmp_path / "old", "0.22.0"), install(tmp_path / "new", "0.24.0")
    model = "deepseek-ai/DeepSeek-V4-Flash"
    engine = bound(command=(old, "serve", "--model", model))
    blue = await engine.launch(Server(name="chat-r1", setting={"model": model}), 60)

    result = await engine.preflight([blue], {"model": model}, "surge", {"command": new}, gpu)

    assert any("is reported for this case (vllm-project/vllm#47174" in note for note in result.notes) is shown


@pytest.mark.parametrize(
    ("of_old", "of_new", "problem", "note"),
    [
        ('{"ok": true}', '{"ok": true}', "", "vLLM 0.33.0 accepts these flags"),
        (
            '{"ok": true}',
            '{"ok": false, "kind": "value", "error": "no such card"}',
            "vLLM 0.33.0 rejects it: no such card",
            "",
        ),
        (
            '{"ok": false, "kind": "value", "error": "offline"}',
            '{"ok": false, "kind": "value", "error": "offline"}',
            "",
            "only the start itself tests the flags: vLLM 0.33.0 says offline",
        ),
    ],
    ids=["accepted", "rejected", "rejected by both"],
)
async def test_the_new_vllm_is_asked_about_the_flags_before_green_starts(
    bound: Bound, tmp_path: Path, of_old: str, of_new: str, problem: str, note: str
) -> None:
    old, new = install(tmp_path / "old", "0.32.0", of_old), install(tmp_path / "new", "0.33.0", of_new)
    engine = bound(command=(old, "serve", "--model", "m"))
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)

    result = await engine.preflight([blue], {"model": "m", "max_num_seqs": 2}, "surge", {"command": new})

    assert result.problem == problem
    assert note in result.notes or problem


async def test_a_stopped_server_starts_again_as_it_was_upgraded(bound: Bound, tmp_path: Path) -> None:
    old, new = install(tmp_path / "old", "0.32.0"), install(tmp_path / "new", "0.33.0")
    engine = bound(command=(old, "serve", "--model", "m"))
    upgraded = Server(name="chat-r1", setting={"model": "m"}, start={"command": new})
    launched = await engine.launch(upgraded, 60)

    await engine.stop(launched)
    later = bound(command=(old, "serve", "--model", "m"), epoch=2)
    await later.launch(launched, 60)

    assert ownership_env.marked(site(tmp_path))["chat-r1"].argv[0] == new


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ({"image": "vllm/vllm-openai:v0.33.0"}, "a process is upgraded by command="),
        ({"command": "/nowhere/bin/vllm"}, "missing or not executable on this host: install that"),
        ({"command": sys.executable}, "request the vllm beside it"),
    ],
)
async def test_the_preflight_refuses_what_cannot_start(bound: Bound, start: Setting, why: str) -> None:
    engine = bound("--model", "m")
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)

    result = await engine.preflight([blue], {"model": "m"}, "surge", start)

    assert why in result.problem


async def test_an_upgrade_that_does_not_start_leaves_nothing(bound: Bound, tmp_path: Path) -> None:
    old = install(tmp_path / "old", "0.32.0")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no libcudart.so.13 >&2\nexit 1\n")
    broken.chmod(0o755)
    engine = bound(command=(old, "serve", "--model", "m"))
    blue = await engine.launch(Server(name="chat-r1", setting={"model": "m"}), 60)

    with pytest.raises(ActError) as error:
        await engine.launch(Server(name="chat-r2", setting={}, start={"command": str(broken)}), 60)

    assert any("libcudart" in line for line in error.value.log)
    assert [server.name for server in await engine.observe()] == [blue.name]


def test_a_virtual_environment_that_is_active_is_replaced() -> None:
    env = {"PATH": os.pathsep.join(("/a/bin", "/usr/bin")), "VIRTUAL_ENV": "/a"}
    origin = Origin(argv=("/a/bin/vllm", "serve", "m"), env=env, cwd="/")

    upgraded = origin.upgraded({"command": "/b/bin/vllm"})

    assert upgraded.argv == ("/b/bin/vllm", "serve", "m")
    assert upgraded.env == {"PATH": os.pathsep.join(("/b/bin", "/usr/bin")), "VIRTUAL_ENV": "/b"}
