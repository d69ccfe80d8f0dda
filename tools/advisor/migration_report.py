"""`flettner lint --upgrade-to`: the command for another release of vLLM, and a table of what differs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.lint.migration import Difference, Kind, Migration, migrate
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, parse_command

REMOVED, REFUSED = "(removed)", "(refused)"


def migrate_config(config: ServeConfig, release: str) -> Migration:
    """Raises ConfigError for a release that is not known."""
    option = f"--upgrade-to {release}"
    if not config.version:
        raise ConfigError(f"{option}: the present release is not known; give it with --vllm-version")
    try:
        return migrate(config, config.version, release.removeprefix("v"))
    except FlagError as error:
        raise ConfigError(f"{option}: {error}") from error


def replace_image(command: ServeCommand, release: str) -> ServeCommand:
    """The command with the image of the other release, whose entry point may be another. Raises FlagError."""
    if not command.version:
        return command
    at, words = len(command.before) - 1, command.words
    words[at] = words[at].replace(command.version, release.removeprefix("v"))
    return replace(parse_command(words), aside=command.aside, live=command.live)


def compare_entries(old: ServeCommand, new: ServeCommand) -> list[Difference]:
    """What the images of the two releases start, if it is not the same."""
    before, after = (" ".join(command.argv[: command.implied]) for command in (old, new))
    why = f"the image of the new release starts `{after}`"
    return [] if before == after else [_note("entry point", before, after, why)]


def remind_of_image(old: str, new: str) -> Difference:
    """The image of a file, which `--fix` does not write."""
    why = "write the new image by hand, together with the flags"
    return _note("image", f"an image of vLLM {old}", f"an image of vLLM {new}", why)


def _note(kind: Kind, before: str, after: str, why: str) -> Difference:
    return Difference(kind=kind, before=before, after=after, finding=Finding(rule="V1", why=why))


def as_text(migration: Migration) -> str:
    """The table of all differences, what a person has to decide first."""
    rows = [
        (row.kind, row.before, _describe_after(row), _describe_reason(row)) for row in migration.differences
    ]
    if not rows:
        return f"vLLM {migration.old} and {migration.new} treat this command line alike\n"
    return format_table(("what", f"vLLM {migration.old}", f"vLLM {migration.new}", "why"), rows)


def as_rows(migration: Migration) -> dict[str, Any]:
    """The differences for `--json`."""
    return {
        "from": migration.old,
        "to": migration.new,
        "differences": [
            {
                "kind": row.kind,
                "before": row.before,
                "after": row.after,
                "refused": row.refused,
                "severity": row.finding.severity,
                "why": row.finding.why,
                "expects": row.finding.expects,
            }
            for row in migration.differences
        ],
    }


def format_refusal(refused: Sequence[Difference], release: str) -> str:
    lines = ", ".join(row.before or row.finding.why for row in refused)
    return format_sentence(f"No command for vLLM {release}: decide about {lines}, then ask again.")


def _describe_after(row: Difference) -> str:
    gone = REMOVED if row.finding.changes else "" if row.kind in {"check", "regression", "value"} else REMOVED
    return REFUSED if row.refused else row.after or gone


def _describe_reason(row: Difference) -> str:
    if row.kind == "default":
        return row.finding.expects
    needed = row.refused or not row.finding.changes or row.finding.severity == "info"
    parts = [row.finding.why, row.finding.expects if needed else ""]
    return "; ".join(part.rstrip(".") for part in parts if part)
