"""`flettner lint`: findings and an improved command line."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flettner.tools.advisor.render import format_command
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.shell_command.serve_command import edit_command, parse_command

SERVE = ("vllm", "serve", "org/model")
EAGER = (*SERVE, "--enforce-eager", "--max-num-seqs", "64")
Lint = Callable[..., tuple[int, str, str]]


def lint_json(lint: Lint, *argv: str) -> dict[str, Any]:
    """Return the JSON of a lint run with findings."""
    status, out, err = lint("--json", "--fail-on", "info", *argv)
    document: dict[str, Any] = json.loads(out)
    assert (status, err) == ({"findings": 1, "not judged": 3, "no findings": 0}[document["verdict"]], "")
    return document


def test_finding_shows_change_reason_and_source(lint: Lint) -> None:
    status, out, err = lint("--", *EAGER)

    assert (status, err) == (1, "")
    assert "G1 eager-mode  enforce_eager true -> false  [auto]" in out
    assert all(f"      {label}" in out for label in ("why", "expects", "risks", "source"))


def test_json_has_a_row_for_each_knob(lint: Lint) -> None:
    (row,) = [row for row in lint_json(lint, "--", *EAGER)["findings"] if row["rule"] == "G1"]

    assert (row["slug"], row["class"], row["severity"]) == ("eager-mode", "auto", "warning")
    assert row["knob"] == "enforce_eager"
    assert (row["current"], row["suggested"]) == (True, False)
    assert row["why"]
    assert row["source"]
    assert isinstance(row["evidence"], dict)


def test_finding_with_several_knobs_has_several_rows(lint: Lint, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."
    )

    rows = lint_json(lint, "--log", str(log), "--", *SERVE, "--gpu-memory-utilization", "0.9")["findings"]

    expected = {row["knob"]: (row["current"], row["suggested"]) for row in rows if row["rule"] == "F5"}
    assert expected == {"max_num_seqs": (None, 64), "gpu_memory_utilization": (0.9, 0.85)}


KNOWN = ("--gpu", "H100", "--vllm-version", "0.32.0", "--", "vllm", "serve", "Qwen/Qwen2.5-7B-Instruct")


def test_clean_result_shows_the_checked_rules(lint: Lint) -> None:
    status, out, err = lint(*KNOWN)

    assert (status, err) == (0, "")
    assert out.startswith("no findings\n  checked ")


def test_unknown_deployment_is_not_judged_and_names_each_missing_fact(lint: Lint) -> None:
    status, out, err = lint("--", *SERVE)

    assert (status, err) == (3, "")
    assert out.startswith("NOT JUDGED")
    text = " ".join(out.split())
    for fact in ("the GPU (--gpu NAME)", "the model org/model (--model-config FILE)", "(--vllm-version V)"):
        assert fact in text


def test_an_unknown_gpu_is_a_missing_fact_and_no_usage_error(lint: Lint) -> None:
    status, out, err = lint("--gpu", "Voodoo 2", "--", *SERVE)

    assert (status, err) == (3, "")
    assert "the GPU Voodoo 2, which the table does not have (--gpu NAME)" in " ".join(out.split())


def test_checked_rules_exclude_those_without_their_facts(lint: Lint) -> None:
    unknown, informed = lint_json(lint, "--", *SERVE), lint_json(lint, *KNOWN)

    lacking = {row["rule"]: row["lacks"] for row in unknown["not_judged"]}
    assert lacking["L1"] == ["gpu", "model"]
    assert "input-limit-too-large" in [row["slug"] for row in unknown["not_judged"]]
    assert not lacking.keys() & set(unknown["checked"])
    assert "L1" in informed["checked"]
    assert {fact for row in informed["not_judged"] for fact in row["lacks"]} == {"profile", "log"}


def test_number_of_gpus_is_needed_by_a_layout_of_several(lint: Lint) -> None:
    lacking = {row["rule"]: row["lacks"] for row in lint_json(lint, *KNOWN, "-tp", "4")["not_judged"]}

    assert lacking["D3"] == ["gpus"]


def test_flags_in_a_file_that_is_not_read_are_not_judged(lint: Lint, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("max-num-seqs: 64\n")

    document = lint_json(lint, *KNOWN, f"--config={file}")

    assert (document["verdict"], document["checked"]) == ("not judged", [])


def test_only_the_wanted_flags_change(lint: Lint) -> None:
    document = lint_json(
        lint, "--", *SERVE, "--enforce-eager", "--served-model-name", "a b", "--max_num-seqs=64"
    )

    assert document["command"] == [
        *SERVE,
        "--no-enforce-eager",
        "--served-model-name",
        "a b",
        "--max_num-seqs=64",
    ]


@pytest.mark.parametrize(
    ("options", "command"),
    [
        pytest.param((), EAGER, id="eager"),
        pytest.param(("--gpu", "T4"), (*EAGER, "--dtype", "bfloat16"), id="T4"),
        pytest.param((), (*SERVE, "--no-enable-prefix-caching", "-O0"), id="turned off"),
        pytest.param((), ("VLLM_ATTENTION_BACKEND=FLASH_ATTN", *EAGER), id="with a variable"),
        pytest.param(
            ("--vllm-version", "0.32.0"),
            (*SERVE, "--swap-space", "4", "--num-scheduler-steps=8"),
            id="removed",
        ),
        pytest.param(
            ("--gpus", "4", "--gpu", "RTX 3090"),
            ("vllm", "serve", "Qwen/Qwen2.5-1.5B-Instruct", "-tp", "4", "--enforce-eager"),
            id="2B on four GPUs",
        ),
    ],
)
def test_improved_command_has_no_findings(
    lint: Lint, options: tuple[str, ...], command: tuple[str, ...]
) -> None:
    before = lint_json(lint, *options, "--", *command)
    assignments = [f"{name}={value}" for name, value in before["env"].items()]

    after = lint_json(lint, *options, "--", *assignments, *before["command"])

    fixed = {(row["rule"], row["knob"]) for row in before["findings"] if row["knob"]}
    assert fixed
    assert not fixed & {(row["rule"], row["knob"]) for row in after["findings"]}


def test_printed_command_equals_the_json_command(lint: Lint, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("A=x y", *SERVE, "--enforce-eager", "--served-model-name", "it's", *["--max-num-seqs", "64"] * 3)
    monkeypatch.setenv("COLUMNS", "60")
    document = lint_json(lint, "--", *words)

    _, out, _ = lint("--", *words)

    pasted = out.split("THE COMMAND WITH THESE CHANGES\n")[1].split("\n\n")[0]
    assert shlex.split(pasted.replace("\\\n", "")) == ["A=x y", *document["command"]]
    assert max(len(line) for line in pasted.splitlines()) <= 60


def test_a_changed_limit_says_what_saves_the_next_restart(lint: Lint) -> None:
    few = ("--gpu", "h100", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-num-seqs", "8")
    with_class = (*few, "--scheduler-cls", "flettner_vllm.scheduler.Scheduler")
    with_both = ("--env", "FLETTNER_CONTROL=/run/vllm/control.sock", *with_class)

    assert "with `--scheduler-cls flettner_vllm.scheduler.Scheduler`" in lint(*few)[1]
    assert "without FLETTNER_CONTROL=/PATH/control.sock no limit" in lint(*with_class)[1]
    assert "--max-num-seqs" in lint(*with_both)[1]
    assert "FLETTNER_CONTROL=/PATH" not in lint(*with_both)[1]


def test_docker_run_keeps_its_arguments(lint: Lint) -> None:
    before = [
        "docker",
        "run",
        "--rm",
        "-it",
        "--gpus",
        "all",
        "-e",
        "K=1",
        "-p",
        "8000:8000",
        "vllm/vllm-openai",
    ]

    document = lint_json(lint, "--", *before, "--model", "org/model", "--enforce-eager")

    assert document["command"] == [*before, "--model", "org/model", "--no-enforce-eager"]


@pytest.mark.parametrize(
    ("fail_on", "command", "status"),
    [
        ((), (*EAGER, "--seed", "1"), 1),
        (("--fail-on", "error"), (*EAGER,), 0),
        (("--fail-on", "error"), (*SERVE, "--such-a-flag", "1"), 1),
        ((), (*SERVE, "--disable-log-stats"), 0),
        (("--fail-on", "info"), (*SERVE, "--disable-log-stats"), 1),
    ],
)
def test_exit_status_counts_findings_from_a_severity_on(
    lint: Lint, fail_on: tuple[str, ...], command: tuple[str, ...], status: int
) -> None:
    assert lint(*fail_on, "--", *command)[0] == status


def test_only_the_wanted_kind_of_change_is_made(lint: Lint) -> None:
    command = (*SERVE, "--enforce-eager", "--max-sequence-length", "4096")
    errors = lint_json(lint, "--only", "error", "--", *command)["command"]
    free = lint_json(lint, "--only", "auto", "--", *EAGER)["command"]

    assert errors == [*SERVE, "--enforce-eager", "--max-model-len", "4096"]
    assert "--enforce-eager" not in free


IMAGES = [
    pytest.param("vllm/vllm-openai:v0.10.2", "org/model", ["--model", "org/model"], id="a model, old image"),
    pytest.param("vllm/vllm-openai:v0.10.2", "--model org/model", ["--model", "org/model"], id="its flag"),
    pytest.param("vllm/vllm-openai:v0.11.1", "org/model", ["org/model"], id="a model, new image"),
    pytest.param("vllm/vllm-openai:v0.12.0", "serve org/model", ["org/model"], id="serve"),
    pytest.param(
        "vllm/vllm-openai:v0.9.2", "vllm serve org/model", ["--model", "org/model"], id="vllm serve"
    ),
    pytest.param(
        "vllm/vllm-openai",
        "python3 -m vllm.entrypoints.openai.api_server --model org/model",
        ["--model", "org/model"],
        id="the module",
    ),
    pytest.param(
        "org/vllm:v0.12.0", "vllm serve org/model", ["vllm", "serve", "org/model"], id="no entrypoint"
    ),
]


@pytest.mark.parametrize(("image", "given", "better"), IMAGES)
def test_words_after_an_image_are_those_of_its_entrypoint(
    lint: Lint, image: str, given: str, better: list[str]
) -> None:
    document = lint_json(lint, "--", "docker", "run", "--ipc=host", image, *given.split())

    right = given.split() == better
    assert {row["rule"] for row in document["findings"] if row["severity"] == "error"} == (
        set() if right else {"V1"}
    )
    assert document["command"] == ["docker", "run", "--ipc=host", image, *better]


def test_a_shell_after_an_image_that_starts_the_server_is_an_error(lint: Lint) -> None:
    shell = ["vllm/vllm-openai:v0.12.0", "-c", "export A=1 && vllm serve org/model --max-batch-size 8"]
    named = lint_json(lint, "--", "docker", "run", "--ipc=host", "--entrypoint", "bash", *shell)
    unnamed = lint_json(lint, "--", "docker", "run", "--ipc=host", shell[0], "bash", *shell[1:])

    assert named["command"][-1] == "export A=1 && vllm serve org/model --max-num-seqs 8"
    assert (unnamed["command"], unnamed["still"]) == (None, ["V1"])
    assert any("takes 'bash' as the model" in row["why"] for row in unnamed["findings"])


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("registry:5000/vllm:0.18.1-cu129", "0.18.1"),
        ("vllm/vllm-openai:latest", ""),
        ("registry:5000/vllm", ""),
        ("rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "0.9.1"),
        ("lmcache/vllm-openai:v0.3.9", ""),
        ("ghcr.io/me/vllm-spark:0.2.0", ""),
        ("ghcr.io/me/vllm-spark:0.23.0", "0.23.0"),
        ("ghcr.io/llm-d/llm-d-cuda:v0.3.0", ""),
        ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.1", ""),
    ],
)
def test_reads_the_version_from_the_image_tag(image: str, version: str) -> None:
    assert parse_command(["docker", "run", image, "--model", "org/model"]).version == version


@pytest.mark.parametrize(
    ("command", "better"),
    [
        ("nohup vllm serve m --enforce-eager > log 2>&1 &", "nohup vllm serve m {} > log 2>&1 &"),
        ("time vllm serve m --enforce-eager", "time vllm serve m {}"),
        ("numactl -N 0 -m 0 vllm serve m --enforce-eager", "numactl -N 0 -m 0 vllm serve m {}"),
        ("uv run --with vllm vllm serve m --enforce-eager", "uv run --with vllm vllm serve m {}"),
        ("$ A=1 vllm serve m \\\n  --enforce-eager | tee log", "A=1 vllm serve m {} | tee log"),
        ("nohup env A='1 2' vllm serve m --enforce-eager&", "nohup env A='1 2' vllm serve m {} &"),
        (
            "sudo docker run -e T=$TOKEN -v ~/a:/a vllm/vllm-openai --model m --enforce-eager",
            'sudo docker run -e T="$TOKEN" -v ~/a:/a vllm/vllm-openai --model m {}',
        ),
        (
            "docker run --entrypoint python3 image -m vllm.entrypoints.openai.api_server --enforce-eager",
            "docker run --entrypoint python3 image -m vllm.entrypoints.openai.api_server {}",
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --model m --enforce-eager",
            "python -m vllm.entrypoints.openai.api_server --model m {}",
        ),
    ],
)
def test_keeps_the_words_around_the_server_command(lint: Lint, command: str, better: str) -> None:
    _, out, err = lint("--", command)

    pasted = out.partition("THE COMMAND WITH THESE CHANGES\n")[2].partition("\n\n")[0]
    assert err == ""
    assert pasted.replace("\\\n    ", "") == better.format("--no-enforce-eager")


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("env A=1 vllm serve m", "A=2 vllm serve m"),
        ("nohup env A=1 vllm serve m", "nohup env A=2 vllm serve m"),
        ("sudo vllm serve m", "sudo env A=2 vllm serve m"),
        ("A=1 docker run -e A image --model m", "A=1 docker run -e A=2 image --model m"),
    ],
)
def test_sets_a_variable_where_the_server_reads_it(command: str, changed: str) -> None:
    assert format_command(edit_command(parse_command([command]), {}, {"A": "2"})) == changed + "\n"


def test_unexpanded_shell_variables_are_no_fault(lint: Lint) -> None:
    document = lint_json(lint, "--", "vllm serve $MODEL --port $PORT -tp $TP --enforce-eager")

    errors = [row for row in document["findings"] if row["severity"] == "error"]
    assert not errors
    assert document["command"][-1] == "--no-enforce-eager"


def test_sudo_drops_the_variables_before_it() -> None:
    assert parse_command(["A=1 sudo B=2 vllm serve m"]).server_env == {"B": "2"}
    assert parse_command(["A=1 sudo -E vllm serve m"]).server_env == {"A": "1"}


def test_edits_a_docker_run_variable_in_place() -> None:
    words = ["docker", "run", "-e", "A=1", "--env=B=2", "image", "serve", "org/model"]

    better = edit_command(parse_command(words), {"max_num_seqs": 4}, {"A": None, "B": "3"})

    assert better.words == [
        "docker",
        "run",
        "-e",
        "B=3",
        "image",
        "serve",
        "org/model",
        "--max-num-seqs",
        "4",
    ]
    assert better.assignments == []


def test_sets_and_unsets_variables_before_the_command() -> None:
    better = edit_command(parse_command(["A=1", "B=x y", *SERVE]), {}, {"A": None, "C": "2", "D": None})

    assert better.assignments == ["env", "-u", "D", "B='x y'", "C=2"]


def test_reads_the_flags_of_a_config_file(lint: Lint, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("enforce-eager: true\nmax-num-seqs: 64\n")

    document = lint_json(lint, "--", *SERVE, "--config", str(file))

    assert "G1" in {row["rule"] for row in document["findings"]}
    assert document["command"][-1] == "--no-enforce-eager"


def test_reports_a_flag_that_only_the_config_file_can_unset(lint: Lint, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("swap-space: 16\nmax-num-seqs: 64\nserved-model-name: [a, b]\n")
    argv = ("--vllm-version", "0.32.0", "--", *SERVE, "--config", str(file))

    document, (_, out, _) = lint_json(lint, *argv), lint(*argv)

    assert document["command"] == [*argv[3:]]
    assert document["in_file"] == [{"file": str(file), "key": "swap-space", "value": 16}]
    assert "remove `swap-space: 16`" in " ".join(out.split())


def test_command_line_overrides_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text(
        "compilation-config:\n  mode: 3\n  level: 1\nmax-num-seqs: 64\nno-async-scheduling: true\n"
    )
    command = parse_command([*SERVE, "--config", str(file), "--max-num-seqs", "8"])

    better = edit_command(command, {"compilation_config.mode": None, "max_num_seqs": 4}, {})

    assert command.setting["max_num_seqs"] == 8
    assert command.setting["async_scheduling"] is False
    assert better.setting["compilation_config"] == '{"level": 1}'
    assert better.setting["max_num_seqs"] == 4
    assert better.unsupported_edits({"compilation_config.mode": None}) == []


def test_config_file_lines_become_the_flags_of_vllm(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text(
        "async-scheduling: false\nenable_prefix_caching: false\nmax-model-len: -1\n"
        "served-model-name: [a, b]\neplb-config: {step_interval: 100}\nlora-modules: []\n"
    )

    command = parse_command([*SERVE, "--config", str(file)])

    assert command.setting == {
        "model": "org/model",
        "config": str(file),
        "async_scheduling": False,  # a negated flag with underscores has no effect
        "max_model_len": -1,
        "served_model_name": "a b",
        "eplb_config": '{"step_interval": 100}',
    }


def test_ignores_a_config_file_that_vllm_ignores(lint: Lint, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("enforce-eager: true\n")

    document = lint_json(lint, "--", *SERVE, f"--config={file}")

    assert not document["findings"]
    assert any("only as two words" in message for message in document["unknown"])


def test_does_not_offer_a_command_that_still_fails_to_start(lint: Lint) -> None:
    argv = ("--", *EAGER, "--speculative-config", "{bad")

    document, (_, out, _) = lint_json(lint, *argv), lint(*argv)

    assert (document["still"], document["command"]) == (["V1"], None)
    assert "NO COMMAND: IT WOULD STILL NOT START: SEE V1 invalid-flag\n" in out
    assert "THE COMMAND WITH THESE CHANGES" not in out
    assert lint_json(lint, "--", *EAGER)["still"] == []


def test_counts_no_error_that_another_findings_change_corrects(lint: Lint, tmp_path: Path) -> None:
    """D3 has no change of its own; the log tells how many chips there are."""
    log = tmp_path / "vllm.log"
    log.write_text("ValueError: Number of devices 4 must be >= the product of mesh_shape (1, 8)\n")
    argv = ("--gpus", "4", "--log", str(log), "--", "vllm", "serve", "m", "--tensor-parallel-size", "8")

    document = lint_json(lint, *argv)

    assert {"D3", "F9"} <= {row["rule"] for row in document["findings"]}
    assert (document["still"], document["command"][-1]) == ([], "4")


def test_parses_a_quoted_command(lint: Lint) -> None:
    assert lint_json(lint, "--", shlex.join(EAGER)) == lint_json(lint, "--", *EAGER)


@pytest.mark.parametrize(
    "line",
    [
        "INFO [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: …",
        "(APIServer pid=1) INFO 04-14 13:46:36 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.19.0",
    ],
)
def test_reads_the_version_from_the_log(lint: Lint, tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\n")

    document = lint_json(lint, "--log", str(log), "--", *SERVE)

    assert not any("--vllm-version" in message for message in document["unknown"])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param((), "no command is given", id="nothing"),
        pytest.param(("--",), "no command is given", id="only --"),
        pytest.param(("--", "ls", "-l"), "vllm serve MODEL", id="not vLLM"),
        pytest.param(("vllm.service",), "vllm.service: no such file", id="a file's name"),
        pytest.param(("--", "./start_vllm"), "starts no vLLM server", id="a script's name"),
        pytest.param(("--", "sh", "-c", "exec vllm serve x -q"), "lint -- vllm serve x -q", id="a shell"),
        pytest.param(
            ("--", "docker", "run", "image", "sh", "-c", "vllm serve x && ls"),
            "'&&' joins several commands",
            id="a shell in a container",
        ),
        pytest.param(
            ("--", "docker", "run", "--entrypoint", "/start.sh", "image"), "--entrypoint", id="an entrypoint"
        ),
        pytest.param(("--", "cd /x && vllm serve x"), "'&&' joins several commands", id="joined commands"),
        pytest.param(("--", *SERVE, "-max-num-seqs", "8"), "write --max-num-seqs", id="one dash"),
        pytest.param(("--", "ray", "start", "--head"), "starts no vLLM server", id="ray"),
        pytest.param(("--", "ssh", "host", *SERVE), "the effect of ssh on the server is unknown", id="ssh"),
        pytest.param(
            ("--", *SERVE, "--enforce-eager=maybe"), "write --enforce-eager or leave it out\n", id="no value"
        ),
        pytest.param(("--", "docker", "compose", "up"), "docker run", id="compose"),
        pytest.param(("--", "docker", "run", "--rm"), "no image", id="no image"),
        pytest.param(("--gpu-memory", "lots", "--", *SERVE), "write it as in 24GiB", id="no size"),
        pytest.param(("--gpus", "0", "--", *SERVE), "--gpus 0", id="no GPU at all"),
        pytest.param(("--profile", "chta", "--", *SERVE), "did you mean chat?", id="unknown profile"),
        pytest.param(("--vllm-version", "new", "--", *SERVE), "0.32.0", id="no version"),
        pytest.param(("--env", "A", "--", *SERVE), "NAME=VALUE", id="no variable"),
        pytest.param(("--log", "/nowhere", "--", *SERVE), "--log /nowhere", id="no log"),
        pytest.param(("--model-config", "/nowhere", "--", *SERVE), "--model-config", id="no config.json"),
        pytest.param(("--", *SERVE, "--config", "/nowhere.yaml"), "/nowhere.yaml", id="no flags file"),
    ],
)
def test_usage_error_names_the_remedy(lint: Lint, argv: tuple[str, ...], expected: str) -> None:
    status, out, err = lint(*argv)

    assert (status, out) == (2, "")
    assert expected in err


def test_names_a_model_config_that_is_not_json(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")

    status, _, err = lint("--model-config", str(tmp_path), "--", *SERVE)

    assert status == 2
    assert "not JSON" in err


def test_unreadable_input_is_one_error() -> None:
    with pytest.raises(FlagError, match="variables"):
        parse_command(["A=1"])


def test_reports_a_public_address_without_a_key_and_prints_no_key(lint: Lint) -> None:
    public = (*SERVE, "--host", "0.0.0.0")  # noqa: S104 - what is linted

    open_, guarded = (lint_json(lint, "--", *public, *key) for key in ((), ("--api-key", "s3cret-key")))

    assert "R1" in {row["rule"] for row in open_["findings"]}
    assert "R1" not in {row["rule"] for row in guarded["findings"]}
    assert "s3cret-key" not in json.dumps(guarded["findings"])


OLD_IMAGE = ("docker", "run", "-e", "VLLM_USE_V1=1", "vllm/vllm-openai:v0.11.0", "--model", "org/model")


def test_a_command_for_another_release_has_its_image_and_flags(lint: Lint) -> None:
    status, out, err = lint(
        "--upgrade-to", "0.33.0", "--", *OLD_IMAGE, "--swap-space", "4", "--task", "generate"
    )

    assert (status, err) == (1, "")
    command = "docker run vllm/vllm-openai:v0.33.0 --model org/model --runner generate"
    assert out.partition("THESE CHANGES\n")[2].replace(" \\\n   ", "").rstrip() == command
    rows = [line for line in out.splitlines() if line.startswith(("variable", "flag", "default", "entry"))]
    assert {row.split()[0] for row in rows} == {"variable", "flag", "default", "entry"}
    assert any("gpu_memory_utilization 0.9" in row and "0.92" in row for row in rows)


def test_a_command_that_another_release_cannot_have_is_not_printed(lint: Lint) -> None:
    status, out, _ = lint(
        "--vllm-version", "0.27.0", "--upgrade-to", "0.28", "--", *SERVE, "--calculate-kv-scales"
    )

    assert status == 1
    assert "No command for vLLM 0.28: decide about --calculate-kv-scales" in out
    assert "THE COMMAND" not in out


def test_json_of_an_upgrade_has_every_difference(lint: Lint) -> None:
    document = lint_json(lint, "--vllm-version", "0.19.0", "--upgrade-to", "0.20.0", "--", *SERVE)

    assert (document["migration"]["from"], document["migration"]["to"]) == ("0.19.0", "0.20.0")
    (share,) = [
        row for row in document["migration"]["differences"] if "gpu_memory_utilization" in row["before"]
    ]
    assert (share["kind"], share["after"], share["refused"]) == ("default", "0.92", False)
    assert document["verdict"] == "no findings"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--upgrade-to", "0.33.0"), "--upgrade-to 0.33.0: the present release is not known"),
        (("--vllm-version", "0.32.0", "--upgrade-to", "0.99"), "--upgrade-to 0.99: vLLM 0.99: the flags of"),
        (("--vllm-version", "0.32.0", "--upgrade-to", "0.33", "--only", "auto"), "--only: chooses among"),
    ],
)
def test_an_upgrade_that_cannot_be_judged_is_refused(lint: Lint, argv: tuple[str, ...], said: str) -> None:
    status, _, err = lint(*argv, "--", *SERVE)

    assert status == 2
    assert said in err
