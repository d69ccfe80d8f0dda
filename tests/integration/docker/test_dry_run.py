from pathlib import Path
from typing import Any

import pytest

from flettner.actuators.docker.container import Container
from flettner.actuators.docker.dry_run import create_body, dry_run, mounts_of, remove_leftovers
from flettner.actuators.docker.preflight import predict_cache_state
from flettner.actuators.docker.registry import container_name
from flettner.actuators.vllm.arg_check import MARK
from flettner.actuators.vllm.flag_check import DryRunOutput, DryRunResult, flags_of, parse_result, pythons_of
from flettner.agent.domain.ports import Site
from tests.support.docker_documents import container
from tests.support.docker_site import Bench
from tests.support.real_vllm import REPOSITORY

Json = dict[str, Any]

# Recorded from vLLM 0.32.0 for the CPU.
SAID = """\
(MainProcess pid=12833) INFO 11-21 16:00:14 [model.py:733] Resolved architecture: LlamaForCausalLM
(MainProcess pid=12833) WARNING 11-21 16:00:14 [cpu.py:224] Triton is not installed.

FLETTNER-CHECK {"vllm": "0.32.0", "cache": "/root/.cache/vllm", "answers": [{"ok": true, "resolved": \
{"max_num_seqs": 4, "max_num_batched_tokens": 2048, "mode": "DYNAMO_TRACE_ONCE"}, "hash": "163b4d85fe", \
"compiles": true}, {"ok": false, "kind": "value", "error": "max_num_batched_tokens (32) must be greater than \
or equal to max_num_seqs (64)."}]}
"""

# A stub of the vLLM package for the script; it accepts two flags.
PACKAGE = {
    "__init__.py": "__version__ = '9.9.9'",
    "envs.py": "VLLM_CACHE_ROOT = '/cache/vllm'",
    "engine/__init__.py": "",
    "usage/__init__.py": "",
    "usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 'server'",
    "utils/__init__.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "entrypoints/__init__.py": "",
    "entrypoints/openai/__init__.py": "",
    "entrypoints/openai/cli_args.py": """
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    return parser
""",
    "engine/arg_utils.py": """
import os
import vllm.envs

class Config:
    def __init__(self, **known):
        vars(self).update(known)

class AsyncEngineArgs(Config):
    @classmethod
    def from_cli_args(cls, options):
        return cls(options=options)

    def create_engine_config(self, usage_context):
        seqs = self.options.max_num_seqs
        if not os.access(self.options.model, os.R_OK):
            raise OSError(self.options.model + " cannot be read")
        if seqs < 1:
            raise ValueError("max_num_seqs should be greater than 0")
        if seqs == 666:
            os.abort()
        return Config(
            scheduler_config=Config(max_num_seqs=seqs),
            compilation_config=Config(level=3),
            compute_hash=lambda: "hash-of-%d" % seqs,
        )
""",
}


def package(folder: Path) -> Path:
    for name, words in PACKAGE.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words)
    return folder


def test_finds_the_results_in_the_output_of_vllm() -> None:
    checked = parse_result(0, SAID)

    assert checked.why == ""
    assert (checked.version, checked.cache) == ("0.32.0", "/root/.cache/vllm")
    assert checked.answers[0].resolved["max_num_batched_tokens"] == 2048
    assert checked.answers[0].hash == "163b4d85fe"
    assert checked.answers[1] == DryRunOutput(
        ok=False,
        kind="value",
        error="max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64).",
    )


def test_an_image_without_vllm_gives_no_result() -> None:
    checked = parse_result(0, f'{MARK}{{"vllm": null, "cache": "", "answers": []}}')

    assert checked.answers == ()
    assert "no vLLM" in checked.why


@pytest.mark.parametrize(
    ("code", "output", "why"),
    [
        (137, "", "ended with code 137 and no answer"),
        (1, "Traceback\nImportError: libcuda.so.1\n", "no answer: ImportError: libcuda.so.1"),
        (0, MARK + '{"vllm": "0.32', "no answer"),
        (0, MARK + '{"vllm": "0.32.0"}', "no answer"),
        (1, "hf_abcdefghijklmnop", "no answer: ***"),
    ],
)
def test_reports_a_missing_result_without_secrets(code: int, output: str, why: str) -> None:
    checked = parse_result(code, output)

    assert checked.answers == ()
    assert why in checked.why


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (["vllm", "serve", "m", "--a", "1"], ["m", "--a", "1"]),
        (["/opt/venv/bin/vllm", "serve", "m"], ["m"]),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], ["--model", "m"]),
        (["python3", "-u", "-X", "dev", "-m", "vllm.entrypoints.cli.main", "serve", "m"], ["m"]),
        (["python3", "/usr/bin/vllm", "serve", "m"], ["m"]),
        (["dumb-init", "vllm", "serve", "m"], ["m"]),
        (["/entrypoint.sh", "--model", "m"], ["--model", "m"]),
        (["python3"], []),
    ],
)
def test_finds_the_flags_after_the_program(command: list[str], flags: list[str]) -> None:
    assert flags_of(command) == flags


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (["vllm", "serve"], "python3"),
        (["/opt/venv/bin/vllm", "serve"], "/opt/venv/bin/python3"),
        (["dumb-init", "/usr/bin/python3.12", "-m", "x"], "/usr/bin/python3.12"),
    ],
)
def test_runs_vllm_with_its_own_python(command: list[str], first: str) -> None:
    pythons = pythons_of(command)

    assert pythons[0] == first
    assert pythons[-2:] == ("python3", "python")


def test_the_check_mounts_the_volumes_of_the_server_read_only() -> None:
    mounts: list[Json] = [
        {"Type": "bind", "Source": "/srv/models", "Destination": "/models", "RW": True},
        {"Type": "volume", "Name": "cache", "Source": "/var/lib/docker/x", "Destination": "/root/.cache"},
        {"Type": "bind", "Source": "/var/run/docker.sock", "Destination": "/var/run/docker.sock"},
        {"Type": "tmpfs", "Source": "", "Destination": "/tmp"},  # noqa: S108
    ]
    request = {"Count": -1, "Capabilities": [["gpu"]]}
    host = {"DeviceRequests": [request], "Privileged": True, "PidMode": "host", "CpusetCpus": "0"}
    blue = container(
        "m", config={"Env": ["HF_TOKEN=x", "HF_HUB_OFFLINE=0"], "User": "7"}, host=host, mounts=mounts
    )

    spec = Container.parse(blue)
    body = create_body(spec, "python3", [["m"]], {"flettner.target": "chat"})

    assert mounts_of(spec) == [
        {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True},
        {"Type": "volume", "Source": "cache", "Target": "/root/.cache", "ReadOnly": True},
    ]
    assert body["Image"] == blue["Image"]
    assert body["User"] == "7"
    assert body["Labels"] == {"flettner.target": "chat"}
    assert {"HF_TOKEN=x", "HF_HUB_OFFLINE=1"} <= set(body["Env"])
    assert body["HostConfig"]["DeviceRequests"] == [request]
    assert body["HostConfig"]["NetworkMode"] == "none"
    assert not {"Privileged", "PidMode", "PortBindings", "CpusetCpus", "Binds"} & body["HostConfig"].keys()


def answer(compiled: str = "a", **other: Any) -> DryRunOutput:  # noqa: ANN401
    return DryRunOutput(ok=True, hash=compiled, **other)


def checked_with(*answers: DryRunOutput, cache: str = "/root/.cache/vllm") -> DryRunResult:
    return DryRunResult(answers=answers, version="0.32.0", cache=cache)


KEPT = [{"Type": "volume", "Name": "cache", "Destination": "/root/.cache", "RW": True}]


@pytest.mark.parametrize(
    ("checked", "mounts", "warm", "why"),
    [
        (checked_with(answer(), answer()), KEPT, True, "old and new servers share"),
        (checked_with(answer("a"), answer("b")), KEPT, False, "the compiled graphs depend on these flags"),
        (checked_with(answer(), answer()), [], False, "mount a volume on /root/.cache/vllm"),
        (checked_with(answer(), answer()), [{**KEPT[0], "RW": False}], False, "mount a volume"),
        (checked_with(answer(), answer(compiles=False)), [], True, "nothing is compiled"),
        (checked_with(answer(""), answer("")), KEPT, None, "does not report"),
        (checked_with(DryRunOutput(ok=False), answer()), KEPT, False, "compiles again"),
        (
            DryRunResult(why="its image has no vLLM"),
            KEPT,
            None,
            "only the start itself tests the flags: its image has no vLLM",
        ),
        (
            checked_with(answer(), DryRunOutput(ok=False, error="no config.json")),
            KEPT,
            None,
            "no config.json",
        ),
    ],
)
def test_a_start_is_warm_with_cached_graphs(
    checked: DryRunResult, mounts: list[Json], warm: bool | None, why: str
) -> None:
    start = predict_cache_state(Container.parse(container(mounts=mounts)), checked)

    assert start.warm is warm
    assert why in " ".join(start.notes)


def test_reports_the_consequences_of_a_flag() -> None:
    now = answer(resolved={"max_num_seqs": 4, "max_num_batched_tokens": 2048, "dtype": "bfloat16"})
    then = answer(resolved={"max_num_seqs": 64, "max_num_batched_tokens": 4096, "dtype": "bfloat16"})

    notes = predict_cache_state(Container.parse(container()), checked_with(now, then)).notes

    assert "max_num_seqs 4 → 64, max_num_batched_tokens 2048 → 4096" in notes[0]
    assert "dtype" not in notes[0]


# In containers.


@pytest.fixture
def site(bench: Bench, tmp_path: Path) -> Site:
    return Site(target=bench.prefix + "chat", state_dir=tmp_path, epoch=1)


async def with_package(bench: Bench, folder: Path) -> Container:
    """A simulator container whose image contains a stub of vLLM."""
    binds = [f"{package(folder)}:/vllm-package:ro"]
    return await bench.spec(await bench.run(binds=binds, env={"PYTHONPATH": f"/vllm-package:{REPOSITORY}"}))


async def test_the_vllm_of_the_image_checks_each_command(bench: Bench, site: Site, tmp_path: Path) -> None:
    blue = await with_package(bench, tmp_path)
    commands = [
        ["vllm", "serve", "/vllm-package", "--max-num-seqs", "4"],
        ["vllm", "serve", "/vllm-package", "--max-num-seqs", "0"],
        ["vllm", "serve", "/vllm-package", "--nonsense"],
        ["vllm", "serve", "/nowhere"],
    ]

    checked = await dry_run(bench.client, site, blue, commands)

    assert checked.version == "9.9.9"
    assert checked.cache == "/cache/vllm"
    assert [(answer.ok, answer.kind, answer.error) for answer in checked.answers] == [
        (True, "", ""),
        (False, "value", "ValueError: max_num_seqs should be greater than 0"),
        (False, "usage", "vllm serve: error: unrecognized arguments: --nonsense"),
        (False, "other", "OSError: /nowhere cannot be read"),
    ]
    assert checked.answers[0].hash == "hash-of-4"
    assert checked.answers[0].resolved == {"max_num_seqs": 4, "level": 3}
    assert await bench.client.inspect(container_name(site, "check")) is None


async def test_a_crash_of_vllm_is_no_result(bench: Bench, site: Site, tmp_path: Path) -> None:
    blue = await with_package(bench, tmp_path)

    checked = await dry_run(bench.client, site, blue, [["vllm", "serve", "/", "--max-num-seqs", "666"]])

    assert "ended with code" in checked.why


async def test_the_simulator_image_has_no_vllm_to_query(bench: Bench, site: Site) -> None:
    blue = await bench.spec(await bench.run())

    checked = await dry_run(bench.client, site, blue, [["vllm", "serve", "tiny"]])

    assert "no vLLM" in checked.why


async def test_an_image_without_python_cannot_be_checked(bench: Bench, site: Site) -> None:
    blue = await bench.inspect(await bench.run())
    blue["Config"]["Env"] = ["PATH=/nowhere"]

    checked = await dry_run(bench.client, site, Container.parse(blue), [["vllm", "serve", "tiny"]])

    assert "none of python3, python" in checked.why
    assert await bench.client.inspect(container_name(site, "check")) is None


async def test_removes_the_check_container_of_a_killed_daemon(bench: Bench, site: Site) -> None:
    blue = await bench.spec(await bench.run())
    name = container_name(site, "check")
    await bench.client.create(create_body(blue, "python3", [["tiny"]], {}), name)

    checked = await dry_run(bench.client, site, blue, [["vllm", "serve", "tiny"]])
    left = await bench.client.inspect(name)
    await bench.client.create(create_body(blue, "python3", [["tiny"]], {}), name)
    await remove_leftovers(bench.client, site)

    assert "no vLLM" in checked.why
    assert left is None
    assert await bench.client.inspect(name) is None
