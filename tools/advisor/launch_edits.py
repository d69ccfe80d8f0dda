"""The changes of the servers of a file, written into its text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flettner.tools.advisor.launch_reports import LaunchReport
from flettner.tools.terminal.values import escape_text
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.edits import Edit, apply_edits, edit_words
from flettner.vllm_facts.launch_files.launch import Word
from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.shell_command.serve_command import edit_command
from flettner.vllm_facts.values import Value, describe_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file's text with the changes of its servers. `refused`: those that it cannot hold, and why."""

    text: str
    changed: Mapping[str, str]  # title of the server: its changes
    refused: Mapping[str, str]


def write_changes(reports: Sequence[LaunchReport]) -> WrittenFile:
    """The changes of all servers of one file, as far as its form allows."""
    text, edits = reports[0].text, list[Edit]()
    changed: dict[str, str] = {}
    refused: dict[str, str] = {}
    for one in reports:
        if one.report is not None and one.report.refused and _split_changes(one):
            refused[one.title] = f"it would still not start: see {', '.join(one.report.still)}"
            continue
        for changes in _split_changes(one):
            change = escape_text(describe_changes(changes))
            try:
                own = _edit_launch(one, changes)
                apply_edits(text, [*edits, *own])
            except FlagError as error:
                refused[one.title] = f"{change}: {error}; make the change by hand"
                continue
            edits += own
            before = f"{changed[one.title]}, " if one.title in changed else ""
            changed[one.title] = before + change
    return WrittenFile(text=apply_edits(text, edits), changed=changed, refused=refused)


def _split_changes(one: LaunchReport) -> list[dict[str, Value]]:
    """The changes of its words, and each variable outside of them, which can be written on its own."""
    if one.report is None:
        return []
    to, env = one.report.fixes.to, one.report.fixes.env
    inline = _inline_variables(one)
    words: dict[str, Value] = {**to, **{name: new for name, new in env.items() if name in inline}}
    rest: list[dict[str, Value]] = [{name: new} for name, new in env.items() if name not in inline]
    return [changes for changes in (words, *rest) if changes]


def _lead(one: LaunchReport) -> Sequence[Word]:
    """The assignments before the command."""
    words = one.launch.words
    return words[: len(words) - len(one.command.words)] if one.command else ()


def _inline_variables(one: LaunchReport) -> set[str]:
    around = (*one.command.front, *one.command.before) if one.command else ()
    return {word.partition("=")[0] for word in (*_texts(_lead(one)), *around) if "=" in word}


def _edit_launch(one: LaunchReport, changes: Mapping[str, Value]) -> list[Edit]:
    """The edits of one server, if the edited text is read as the wanted command. Raises FlagError."""
    if one.command is None or one.report is None:
        return []
    words, env, inline = one.launch.words, one.report.fixes.env, _inline_variables(one)
    outside = changes.keys() & env.keys() - inline
    own = {name: env[name] for name in changes.keys() & env.keys() & inline}
    to = {name: new for name, new in changes.items() if name in one.report.fixes.to}
    better = edit_command(one.command, to, own)
    wanted = [*_edit_assignments(_lead(one), own), *better.words]
    edits = edit_words(one.text, words, wanted)
    edits += [_remove_variable(one, name, env[name]) for name in sorted(outside)]
    _verify(one, apply_edits(one.text, edits), wanted)
    return edits


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words]


def _edit_assignments(lead: Sequence[Word], env: Mapping[str, str | None]) -> list[str]:
    """`K=V …` before the command with the changed variables."""
    kept = []
    for text in _texts(lead):
        name = text.partition("=")[0]
        if name not in env:
            kept.append(text)
        elif (new := env[name]) is not None:
            kept.append(f"{name}={new}")
    return kept


def _remove_variable(one: LaunchReport, name: str, new: str | None) -> Edit:
    """The removal of a variable's own line. Raises FlagError."""
    given = one.launch.env.get(name)
    if new is not None or given is None or given.whole is None:
        raise FlagError(f"the variable {name} cannot be changed in this file")
    return Edit(*given.whole, "")


def _verify(one: LaunchReport, text: str, wanted: Sequence[str]) -> None:
    """Read the edited text again: this server has the wanted words, and every other server is unchanged."""
    before, after = read_launches(one.file, one.text), read_launches(one.file, text)
    place = before.index(one.launch)
    expected = [list(wanted) if at == place else _texts(old.words) for at, old in enumerate(before)]
    if [_texts(new.words) for new in after] != expected:
        raise FlagError("the file's form does not allow the change")
