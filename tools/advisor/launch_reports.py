"""The servers that files start, linted one by one."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flettner.agent.domain.errors import ConfigError
from flettner.primitives.files import read_file
from flettner.redaction import MASK
from flettner.tools.advisor.lint_report import LintReport, lint_command
from flettner.tools.advisor.shared_cards import PlacedServer, find_shared_card
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import find_secrets
from flettner.vllm_facts.launch_files.launch import Launch, line_of
from flettner.vllm_facts.launch_files.recognise import KINDS, read_launches, read_script_of
from flettner.vllm_facts.serve_config import Container, SharedCard
from flettner.vllm_facts.shell_command.docker_run import is_vllm_image
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, parse_command

_MAX_SCRIPT = 2**18  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReport:
    """One server of a file. `problem`: why its command cannot be read; then there is no report."""

    file: str
    text: str
    launch: Launch
    command: ServeCommand | None = None
    report: LintReport | None = None
    problem: str = ""

    @property
    def line(self) -> int:
        return line_of(self.text, self.launch.start)

    @property
    def title(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.launch.name}" if self.launch.name else "")


def lint_text(
    file: str, text: str, args: argparse.Namespace, *, beside: Mapping[str, str] = {}
) -> list[LaunchReport]:
    """Lint the servers of a file. Raises ConfigError if it cannot be read.

    `beside`: the texts of other files whose servers run on the same host.
    """
    try:
        launches = [each for launch in read_launches(file, text) for each in _follow_script(file, launch)]
    except FlagError as error:
        raise ConfigError(f"{file}: {error}; lint reads {KINDS}") from error
    own = [_place_server(file, text, each) for each in launches if not (args.gpu and each.alternative)]
    others = [server for name, other in beside.items() for server in _read_beside(name, other)]
    names = {server.name for server in own}
    host = [*own, *(server for server in others if server.name not in names)]
    return [_lint_launch(file, server, args, find_shared_card(server, host)) for server in own]


def _follow_script(file: str, launch: Launch) -> list[Launch]:
    """The servers of the script beside a Dockerfile that its container starts. Raises FlagError."""
    if not launch.script:
        return [launch]
    unread = [launch] if is_vllm_image(launch.bypassed_image) else []
    folder = Path(file).parent.resolve()
    path = (folder / launch.script).resolve()
    if not path.is_relative_to(folder):
        return unread
    try:
        servers = read_script_of(launch, read_file(path, _MAX_SCRIPT).decode())
    except (OSError, UnicodeDecodeError):
        return unread
    remark = f"the command is that of {launch.script}"
    return [replace(server, remarks=(remark, *server.remarks)) for server in servers] or unread


def _place_server(file: str, text: str, launch: Launch) -> PlacedServer:
    try:
        command = None if launch.problem else _parse_launch(launch)
    except (FlagError, ConfigError):
        command = None  # reported by its own check
    line = f"the server of line {line_of(text, launch.start)}"
    unit = Path(file).stem if file.endswith(".service") else ""
    return PlacedServer(text=text, launch=launch, command=command, name=unit or launch.name or line)


def _read_beside(file: str, text: str) -> list[PlacedServer]:
    try:
        return [_place_server(file, text, launch) for launch in read_launches(file, text)]
    except FlagError:
        return []  # its own check says so


def _lint_launch(
    file: str, server: PlacedServer, args: argparse.Namespace, shared_card: SharedCard | None
) -> LaunchReport:
    launch = server.launch
    base = LaunchReport(file=file, text=server.text, launch=launch)
    if launch.problem:
        return replace(base, problem=launch.problem)
    try:
        command = _parse_launch(launch)
        report = lint_command(
            command,
            args,
            version=launch.version,
            gpu=launch.gpu,
            gpus=launch.gpus,
            little_shared_memory=launch.little_shared_memory,
            granted=launch.granted,
            container=_judged_container(launch),
            hosts=launch.hosts,
            ray=launch.ray,
            in_process=launch.in_process,
            unread=launch.unread,
            shared_card=shared_card,
        )
    except (FlagError, ConfigError) as error:
        if isinstance(error, ConfigError) and str(error).startswith("--"):
            raise
        return replace(base, problem=str(error))
    return replace(base, command=command, report=_mask(report))


def _judged_container(launch: Launch) -> Container | None:
    """Without what asks for an address, where a flag that is not read may choose that address."""
    container = launch.container
    if not container or not launch.unread:
        return container
    return replace(container, checks=(), asked_ports=(), partly_read=True)


def _parse_launch(launch: Launch) -> ServeCommand:
    command = parse_command([word.text for word in launch.words], elsewhere=True)
    command = replace(
        command,
        live=any(word.live for word in launch.words),
        entry_fault=command.entry_fault or launch.entry_fault,
        unlimited_memlock=launch.locks_memory,
        bypassed=launch.bypassed_image,
    )
    if command.before:  # `docker run` passes no variables on
        return command
    env = {name: variable.value for name, variable in launch.env.items()}
    return replace(command, env={**env, **command.env})


def _mask(report: LintReport) -> LintReport:
    """Remove the values of secrets, and the variables: the output for a file ends in the logs of builds."""
    better = report.better
    secrets = find_secrets(better.words)
    argv = tuple(_mask_word(word, secrets) for word in better.argv)
    before = tuple(_mask_word(word, secrets) for word in better.before)
    return replace(report, better=replace(better, argv=argv, before=before, env={}))


def _mask_word(word: str, secrets: Sequence[str]) -> str:
    hidden = next((secret for secret in secrets if secret and word.endswith(secret)), "")
    return word.removesuffix(hidden) + MASK if hidden else word
