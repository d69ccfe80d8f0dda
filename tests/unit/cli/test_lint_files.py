"""`flettner lint -f`: findings of files with their lines, and the changes written back."""

import io
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch_files.files import COMPOSE, DEPLOYMENT, FILES, SCRIPT, UNIT

Lint = Callable[..., tuple[int, str, str]]
VERSION = ("--vllm-version", "0.32.0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of each kind, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def servers(lint: Lint, *argv: str) -> list[dict[str, Any]]:
    _, out, _ = lint("--json", *argv)
    documents: list[dict[str, Any]] = json.loads(out)["servers"]
    return documents


@pytest.mark.usefixtures("folder")
def test_each_service_has_its_own_findings(lint: Lint) -> None:
    chat, embed = servers(lint, "--gpu", "H100", "-f", "compose.yaml")

    assert (chat["name"], chat["line"], embed["name"], embed["line"]) == ("chat", 13, "embed", 26)
    changed = {row["knob"] for row in chat["findings"] if row["knob"]}  # the others are of its container
    assert changed == {"swap_space", "env:VLLM_USE_V1"}
    assert chat["verdict"] == "findings"
    assert {fact for row in embed["not_judged"] for fact in row["lacks"]} >= {"version"}


@pytest.mark.usefixtures("folder")
def test_files_give_version_gpus_and_variables(lint: Lint) -> None:
    (server,) = servers(lint, "--gpu", "H100", "-f", "deployment.yaml")

    lacking = {fact for row in server["not_judged"] for fact in row["lacks"]}
    assert lacking == {"profile", "log"}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", FILES)
def test_fix_writes_the_changes_and_a_second_run_changes_nothing(lint: Lint, folder: Path, name: str) -> None:
    lint(*VERSION, "--fix", "-f", name)
    once = (folder / name).read_text()

    lint(*VERSION, "--fix", "-f", name)

    assert once != FILES[name]
    assert "--swap-space" not in once
    assert (folder / name).read_text() == once


def test_fix_keeps_comments_and_all_other_lines(lint: Lint, folder: Path) -> None:
    lint(*VERSION, "--fix", "-f", "compose.yaml")

    before = [line for line in COMPOSE.splitlines() if "swap-space" not in line and '"4"' not in line]
    after = [line for line in before if "VLLM_USE_V1" not in line]
    assert (folder / "compose.yaml").read_text().splitlines() == after


def test_fix_reports_what_remains_and_names_what_it_changed(lint: Lint, folder: Path) -> None:
    (folder / "vllm.service").chmod(0o640)

    status, out, err = lint(*VERSION, "--fix", "-f", "vllm.service")

    assert (status, "swap" in out) == (3, False)
    assert err == "fixed vllm.service:7: ExecStart: without swap_space, without VLLM_USE_V1\n"
    assert stat.S_IMODE((folder / "vllm.service").stat().st_mode) == 0o640
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_diff_prints_a_patch_that_gives_what_fix_writes(lint: Lint, folder: Path) -> None:
    _, patch, _ = lint(*VERSION, "--diff", "-f", "deployment.yaml", "run.sh")
    assert (folder / "run.sh").read_text() == SCRIPT

    subprocess.run(["git", "apply", "-"], input=patch, text=True, check=True, cwd=folder)
    patched = {name: (folder / name).read_text() for name in ("deployment.yaml", "run.sh")}

    (folder / "deployment.yaml").write_text(DEPLOYMENT)
    (folder / "run.sh").write_text(SCRIPT)
    lint(*VERSION, "--fix", "-f", "deployment.yaml", "run.sh")
    assert patched == {name: (folder / name).read_text() for name in patched}
    assert patched["run.sh"] != SCRIPT


def test_change_that_the_file_cannot_hold_is_named(lint: Lint, folder: Path) -> None:
    (folder / "values.yaml").write_text(FILES["values.yaml"].replace("Caching: true", "Caching: false"))

    _, _, err = lint("--diff", "-f", "values.yaml")

    message = " ".join(err.split())
    assert "values.yaml:3: llama3: not written" in message
    assert "make the change by hand" in message


@pytest.mark.usefixtures("folder")
def test_github_annotations_have_the_line_of_the_flag(lint: Lint) -> None:
    status, out, _ = lint(*VERSION, "--format", "github", "-f", "compose.yaml", "run.sh")

    lines = [line.split("::", 2)[1] for line in out.splitlines() if "swap-space" in line]
    assert status == 1
    assert lines == [
        f"error file=compose.yaml,line={_line(COMPOSE, '- --swap-space')},title=flettner V1 invalid-flag",
        f"error file=compose.yaml,line={_line(COMPOSE, '--swap-space 4')},title=flettner V1 invalid-flag",
        f"error file=run.sh,line={_line(SCRIPT, '--swap-space')},title=flettner V1 invalid-flag",
    ]


def _line(text: str, part: str) -> int:
    return next(at for at, line in enumerate(text.splitlines(), start=1) if part in line)


def test_annotation_escapes_what_ends_a_workflow_command(lint: Lint, folder: Path) -> None:
    (folder / "a,b.sh").write_text("vllm serve org/model --enforce-eager\n")

    _, out, _ = lint("--format", "github", "-f", "a,b.sh")

    assert out.startswith("::warning file=a%2Cb.sh,line=1,title=flettner G1 eager-mode::")
    assert all(line.startswith("::") for line in out.splitlines())


@pytest.mark.usefixtures("folder")
def test_sarif_has_rules_levels_and_lines(lint: Lint) -> None:
    _, out, _ = lint(*VERSION, "--format", "sarif", "-f", "vllm.service")

    document = json.loads(out)
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    first = run["results"][0]
    place = first["locations"][0]["physicalLocation"]
    assert document["version"] == "2.1.0"
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert (first["ruleId"], first["level"]) == ("V1", "error")
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["name"] == "invalid-flag"
    assert place["artifactLocation"]["uri"] == "vllm.service"
    assert place["region"]["startLine"] == _line(UNIT, "--swap-space")
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert any("/etc/vllm.env are not read" in note for note in notes)
    assert any("--gpu NAME" in note for note in notes)


def test_flags_that_cannot_be_read_are_not_judged(lint: Lint, folder: Path) -> None:
    (folder / "clean.sh").write_text('vllm serve Qwen/Qwen2.5-7B-Instruct $EXTRA "$@"\n')

    status, out, _ = lint("--gpu", "H100", *VERSION, "-f", "clean.sh")

    assert status == 3
    assert "the flags in $EXTRA are unknown" in " ".join(out.split())


def test_server_that_cannot_be_read_does_not_hide_the_others(lint: Lint, folder: Path) -> None:
    (folder / "compose.yaml").write_text(COMPOSE.replace("--model=Qwen/Qwen3-8B", "--enforce-eager=maybe"))

    status, out, _ = lint(*VERSION, "-f", "compose.yaml")

    assert status == 2
    assert "== compose.yaml:13: chat\nCANNOT BE READ: " in out
    assert "== compose.yaml:26: embed\nERRORS" in out


def test_secrets_of_a_file_are_not_printed(lint: Lint, folder: Path) -> None:
    (folder / "run.sh").write_text(
        "export HF_TOKEN=hf_secret1\nvllm serve m --api-key s3cret --enforce-eager\n"
    )

    for form in ("text", "json", "sarif", "github"):
        _, out, err = lint("--format", form, "-f", "run.sh")
        assert "s3cret" not in out + err
        assert "hf_secret1" not in out + err


def test_standard_input_is_read_by_its_content(lint: Lint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(COMPOSE.encode())))

    _, out, _ = lint(*VERSION, "-f", "-")

    assert "== <stdin>:13: chat\n" in out


@pytest.mark.usefixtures("folder")
def test_file_in_the_place_of_a_command_is_read_as_a_file(lint: Lint) -> None:
    assert lint(*VERSION, "vllm.service") == lint(*VERSION, "-f", "vllm.service")


def test_flags_alone_are_those_of_vllm_serve(lint: Lint) -> None:
    alone = lint("--json", "--", "--model", "org/model", "--enforce-eager")

    assert alone == lint("--json", "--", "vllm", "serve", "--model", "org/model", "--enforce-eager")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(("absent.service",), "absent.service: no such file", id="no file"),
        pytest.param(("vllm.service", "--gpu", "T4"), "options come before the file", id="options behind"),
        pytest.param(("-f", "absent.yaml"), "absent.yaml: cannot be read", id="no file of -f"),
        pytest.param(("-f", "web.yaml"), "web.yaml: starts no vLLM server", id="no server"),
        pytest.param(("-f", "run.sh", "--", "vllm", "serve", "m"), "not both", id="file and command"),
        pytest.param(("-f", "-", "--fix"), "standard input cannot be written", id="--fix of standard input"),
        pytest.param(("--fix", "--", "vllm", "serve", "m"), "needs a file", id="--fix of a command"),
        pytest.param(("--gpu-memory", "lots", "-f", "run.sh"), "--gpu-memory lots", id="an option"),
    ],
)
def test_usage_error_names_what_to_do(lint: Lint, folder: Path, argv: tuple[str, ...], expected: str) -> None:
    (folder / "web.yaml").write_text("services: {web: {image: nginx}}\n")

    status, out, err = lint(*argv)

    assert (status, out) == (2, "")
    assert expected in " ".join(err.split())


def test_unrelated_files_are_passed_over_on_demand(lint: Lint, folder: Path) -> None:
    (folder / "web.yaml").write_text("{{ a template }}\n")

    assert lint("--skip-unrelated", "web.yaml") == (0, "", "")


FILES_AND_FIXES = [
    pytest.param(
        "run.sh",
        "ARGS=(--max-num-seqs 64 --swap-space 4)\n# kept\nARGS+=(--max-sequence-length 8192)\n"
        'vllm serve org/model "${ARGS[@]}" --port 8000\n',
        "ARGS=(--max-num-seqs 64)\n# kept\nARGS+=()\n"
        'vllm serve org/model "${ARGS[@]}" --port 8000 --max-model-len 8192\n',
        id="arrays that grow",
    ),
    pytest.param(
        "compose.yaml",
        "services: {a: {image: 'vllm/vllm-openai:v0.32.0', ipc: host, command: [m, --swap-space, '4']}}\n",
        "services: {a: {image: 'vllm/vllm-openai:v0.32.0', ipc: host, command: [m]}}\n",
        id="a flow list",
    ),
    pytest.param(
        "compose.yaml",
        "services: {a: {image: 'vllm/vllm-openai:v0.10.2', ipc: host, command: [org/model]}}\n",
        "services: {a: {image: 'vllm/vllm-openai:v0.10.2', ipc: host, command: [--model, org/model]}}\n",
        id="the only word",
    ),
    pytest.param(
        "compose.yaml",
        "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    ipc: host\n    command:\n"
        "    - serve\n    - org/model\n    - --dtype auto\n",
        "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    ipc: host\n    command:\n"
        "    - org/model\n    - --dtype\n    - auto\n",
        id="a flag and its value in one item",
    ),
    pytest.param(
        "serve.yaml",
        "# mine\nmodel: org/model\nmax-sequence-length: 8192\nmax-num-seqs: 64  # kept\n",
        "# mine\nmax-model-len: 8192\nmodel: org/model\nmax-num-seqs: 64  # kept\n",
        id="a --config file",
    ),
    pytest.param(
        "Dockerfile",
        'FROM vllm/vllm-openai:v0.32.0\nCMD ["org/model", \\\n  "--swap-space", "4"]\n',
        'FROM vllm/vllm-openai:v0.32.0\nCMD ["org/model"]\n',
        id="a Dockerfile",
    ),
    pytest.param(
        "values.yaml",
        "servingEngineSpec:\n  modelSpec:\n    - tag: v0.32.0\n      repository: vllm/vllm-openai\n"
        "      modelURL: org/model\n      vllmConfig:\n        extraArgs: [--swap-space, '4']\n",
        "servingEngineSpec:\n  modelSpec:\n    - tag: v0.32.0\n      repository: vllm/vllm-openai\n"
        "      modelURL: org/model\n      vllmConfig:\n        extraArgs: []\n",
        id="beside a change that the file cannot hold",
    ),
]


@pytest.mark.parametrize(("name", "before", "after"), FILES_AND_FIXES)
def test_each_change_that_the_file_can_hold_is_written(
    lint: Lint, folder: Path, name: str, before: str, after: str
) -> None:
    (folder / name).write_text(before)

    lint("--fix", "--vllm-version", "0.32.0", "-f", name) if name == "run.sh" else lint("--fix", "-f", name)

    assert (folder / name).read_text() == after


def test_a_file_that_cannot_be_read_does_not_hide_the_others(lint: Lint, folder: Path) -> None:
    (folder / "broken.yaml").write_text("a: [")

    status, out, err = lint("-f", "broken.yaml", "missing.yaml", "compose.yaml")

    assert status == 2
    assert "== compose.yaml" in out
    assert "broken.yaml: line 1: not YAML" in err
    assert "missing.yaml: cannot be read" in err


def test_a_flag_that_a_condition_adds_is_unread(lint: Lint, folder: Path) -> None:
    (folder / "if.sh").write_text(
        'A=(--port 1)\nif [ -n "$X" ]; then\n  A+=(--seed 1)\nfi\nvllm serve org/model "${A[@]}"\n'
    )

    assert "line 3: whether --seed 1 is added is unknown" in lint("-f", "if.sh")[1]


OLD_COMPOSE = """\
services:
  chat:
    image: vllm/vllm-openai:v0.11.1
    environment:
      - HF_HOME=/models  # shared
      - VLLM_USE_V1=1
    command: --model org/model --swap-space 4 --task generate
"""


def test_flags_of_a_file_are_written_for_another_release(lint: Lint, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(OLD_COMPOSE)

    _, out, _ = lint("--upgrade-to", "0.33.0", "-f", str(file))
    lint("--upgrade-to", "0.33.0", "--fix", "-f", str(file))

    assert "write the new image by hand" in " ".join(out.split())
    after = OLD_COMPOSE.replace("--swap-space 4 --task generate", "--runner generate")
    assert file.read_text() == after.replace("      - VLLM_USE_V1=1\n", "")
