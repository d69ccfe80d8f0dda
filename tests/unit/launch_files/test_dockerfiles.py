"""Dockerfiles: here-documents are no instructions, and a copied script may start the server."""

import argparse
from pathlib import Path

import pytest

from flettner.tools.advisor.fact_options import add_options
from flettner.tools.advisor.launch_reports import LaunchReport, lint_text
from flettner.vllm_facts.launch_files.recognise import read_launches

DOCUMENT = """\
FROM vllm/vllm-openai:v0.12.0
RUN python3 - <<'END' && true
from os import environ
CMD ["of", "the", "document"]
END
CMD ["org/m", "--max-num-seqs", "8"]
"""


def test_the_lines_of_a_here_document_are_no_instructions() -> None:
    (launch,) = read_launches("Dockerfile", DOCUMENT)

    assert [word.text for word in launch.words] == ["vllm", "serve", "org/m", "--max-num-seqs", "8"]
    assert launch.version == "0.12.0"


@pytest.mark.parametrize(
    ("lines", "script"),
    [
        ('COPY run.sh /app/run.sh\nENTRYPOINT ["/app/run.sh"]', "run.sh"),
        ('COPY --chmod=755 docker/run.sh docker/other.sh /app/\nENTRYPOINT ["/app/run.sh"]', "docker/run.sh"),
        ('WORKDIR /srv\nCOPY run.sh .\nENTRYPOINT ["bash", "./run.sh"]', "run.sh"),
        ('COPY --from=build /run.sh /run.sh\nENTRYPOINT ["/run.sh"]', ""),
        ('COPY run.sh /app/run.sh\nENTRYPOINT ["/run.sh"]', ""),
        ('COPY serve.py /serve.py\nENTRYPOINT ["/serve.py"]', ""),
    ],
)
def test_the_copied_script_that_a_container_starts_is_named(lines: str, script: str) -> None:
    (launch,) = read_launches("Dockerfile", f"FROM vllm/vllm-openai:v0.12.0\n{lines}\n")

    assert launch.script == script
    assert launch.problem


def lint(folder: Path, base: str) -> list[LaunchReport]:
    text = f'FROM {base}\nENV LIMIT=24\nCOPY run.sh /run.sh\nENTRYPOINT ["/run.sh"]\n'
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.set_defaults(only=None, upgrade_to=None, fail_on="warning")
    return lint_text(str(folder / "Dockerfile"), text, parser.parse_args([]))


@pytest.mark.parametrize("base", ["vllm/vllm-openai:v0.12.0", "nvidia/cuda:12.9.1-devel-ubuntu24.04"])
def test_the_script_beside_a_dockerfile_gives_the_command(tmp_path: Path, base: str) -> None:
    (tmp_path / "run.sh").write_text('#!/bin/sh\nexec vllm serve org/m --max-num-seqs "$LIMIT"\n')

    (report,) = lint(tmp_path, base)

    assert report.command is not None
    assert report.command.setting == {"model": "org/m", "max_num_seqs": 24}
    assert report.launch.remarks[0] == "the command is that of run.sh"


def test_without_the_script_a_server_of_unknown_flags_stays_a_problem(tmp_path: Path) -> None:
    (report,) = lint(tmp_path, "vllm/vllm-openai:v0.12.0")

    assert "flags are unknown" in report.problem
    assert lint(tmp_path, "nvidia/cuda:12.9.1-devel-ubuntu24.04") == []


COMPOSE = """\
services:
  v:
    image: vllm/vllm-openai:v0.21.0
    entrypoint: [bash, -c, "exec bash /start.sh"]
    volumes: ["./start.sh:/start.sh:ro", "models:/models"]
"""


def test_a_script_that_a_volume_brings_is_read_beside_its_compose_file(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("exec vllm serve org/m --seed 1\n")
    file = tmp_path / "compose.yaml"

    (launch,) = read_launches(str(file), COMPOSE)
    assert launch.script == "./start.sh"
    assert launch.problem
    args = argparse.ArgumentParser()
    add_options(args)
    args.set_defaults(only=None, upgrade_to=None, fail_on="warning")
    (report,) = lint_text(str(file), COMPOSE, args.parse_args([]))
    assert report.launch.name == "v"
    assert report.launch.version == "0.21.0"
    assert [word.text for word in report.launch.words][-3:] == ["org/m", "--seed", "1"]
