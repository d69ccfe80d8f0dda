"""The changes of the servers of a file, written into its text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flettner.tools.advisor.launch_reports import LaunchReport
from flettner.tools.terminal.values import escape_text
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.edits import Edit, apply_edits, edit_words
from flettner.vllm_facts.launch_files.launch import Word
from flettner.vllm_facts.launch_files.verified_edits import verify_edit
from flettner.vllm_facts.shell_command.serve_command import edit_command
from flettner.vllm_facts.values import Value, describe_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file's text with the changes of its servers. `refused`: those that it cannot hold, and why."""

    text: str
    changed: Mapping[str, str]  # title of the server: its changes
    refused: Mapping[str, str]


def write_changes(reports: Sequence[LaunchReport]) -> WrittenFile:
    """Return the changes of all servers of one file, as far as its form allows."""
    text, edits = reports[0].text, list[Edit]()
    changed: dict[str, str] = {}
    refused: dict[str, str] = {}
    for server in reports:
        if server.report is not None and server.report.refused and _split_changes(server):
            refused[server.title] = f"it would still not start: see {', '.join(server.report.still)}"
            continue
        for changes in _split_changes(server):
            written, own, why = _edit_as_far(server, changes, text, edits)
            if why:
                left = {name: new for name, new in changes.items() if name not in written}
                lost = escape_text(describe_changes(left))
                refused[server.title] = f"{lost}: {why}; make the change by hand"
            if not written:
                continue
            edits += own
            before = f"{changed[server.title]}, " if server.title in changed else ""
            changed[server.title] = before + escape_text(describe_changes(written))
    return WrittenFile(text=apply_edits(text, edits), changed=changed, refused=refused)


def _edit_as_far(
    server: LaunchReport, changes: Mapping[str, Value], text: str, edits: Sequence[Edit]
) -> tuple[Mapping[str, Value], list[Edit], str]:
    """The changes that the file can hold, all or those of single findings; their edits; why others cannot."""

    def attempt(wanted: Mapping[str, Value]) -> list[Edit]:
        own = _edit_launch(server, wanted)
        apply_edits(text, [*edits, *own])
        return own

    try:
        return changes, attempt(changes), ""
    except FlagError as error:
        why = str(error)
    written: dict[str, Value] = {}
    own: list[Edit] = []
    for finding in server.report.fixes.findings if server.report else ():
        part = {name: changes[name] for name in finding.changes_by_name if name in changes}
        if part.items() <= written.items():
            continue
        try:
            own = attempt({**written, **part})
        except FlagError as error:
            why = str(error)
            continue
        written |= part
    return written, own, why


def _split_changes(server: LaunchReport) -> list[dict[str, Value]]:
    """Return the changes of its words, and each variable outside of them, which can be written on its own."""
    if server.report is None:
        return []
    to, env = server.report.fixes.to, server.report.fixes.env
    inline = _inline_variables(server)
    words: dict[str, Value] = {**to, **{name: new for name, new in env.items() if name in inline}}
    rest: list[dict[str, Value]] = [{name: new} for name, new in env.items() if name not in inline]
    return [changes for changes in (words, *rest) if changes]


def _lead(server: LaunchReport) -> Sequence[Word]:
    """Return the assignments before the command."""
    words = server.launch.words
    return words[: len(words) - len(server.command.words)] if server.command else ()


def _inline_variables(server: LaunchReport) -> set[str]:
    around = (*server.command.front, *server.command.before) if server.command else ()
    return {word.partition("=")[0] for word in (*_texts(_lead(server)), *around) if "=" in word}


def _edit_launch(server: LaunchReport, changes: Mapping[str, Value]) -> list[Edit]:
    """Return the edits of one server, if the edited text is read as the wanted command. Raises FlagError."""
    if server.command is None or server.report is None:
        return []
    words, env, inline = server.launch.words, server.report.fixes.env, _inline_variables(server)
    outside = changes.keys() & env.keys() - inline
    own = {name: env[name] for name in changes.keys() & env.keys() & inline}
    to = {name: new for name, new in changes.items() if name in server.report.fixes.to}
    better = edit_command(server.command, to, own)
    wanted = [*_edit_assignments(_lead(server), own), *better.words]
    edits = edit_words(server.text, words, wanted)
    edits += [_remove_variable(server, name, env[name]) for name in sorted(outside)]
    verify_edit(server.file, server.text, apply_edits(server.text, edits), server.launch, wanted)
    return edits


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words]


def _edit_assignments(lead: Sequence[Word], env: Mapping[str, str | None]) -> list[str]:
    """Return the assignments `K=V` before the command with the changed variables."""
    words = []
    for text in _texts(lead):
        name = text.partition("=")[0]
        if name not in env:
            words.append(text)
        elif (new := env[name]) is not None:
            words.append(f"{name}={new}")
    return words


def _remove_variable(server: LaunchReport, name: str, new: str | None) -> Edit:
    """Return the removal of a variable's own line. Raises FlagError."""
    given = server.launch.env.get(name)
    if new is not None or given is None or given.whole is None:
        raise FlagError(f"the variable {name} cannot be changed in this file")
    return Edit(*given.whole, "")
