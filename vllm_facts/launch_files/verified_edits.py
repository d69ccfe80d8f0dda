"""Changes of flags written into a file that starts servers, each verified by reading the file again."""

from collections.abc import Mapping, Sequence

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.edits import apply_edits, edit_words
from flettner.vllm_facts.launch_files.launch import Launch
from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.shell_command.serve_command import edit_command, parse_command
from flettner.vllm_facts.values import Knob, Value


def change_flags(file: str, text: str, server: str, to: Mapping[Knob, Value]) -> str:
    """Return the text with other flags of a server; `server` empty: of the only one. Raises FlagError.

    The value None removes a flag.
    """
    launches = read_launches(file, text)
    named = [launch for launch in launches if server in {"", launch.name}]
    if len(named) != 1:
        names = ", ".join(launch.name for launch in launches) or "none"
        raise FlagError(
            f"{file} starts {len(named)} servers {server or 'in all'}: name one (there are: {names})"
        )
    (launch,) = named
    if launch.problem:
        raise FlagError(f"{file}: {launch.problem}")
    words = [word.text for word in launch.words]
    command = parse_command(words, elsewhere=True)
    lead = words[: len(words) - len(command.words)]
    wanted = [*lead, *edit_command(command, to, {}).words]
    after = apply_edits(text, edit_words(text, launch.words, wanted))
    verify_edit(file, text, after, launch, wanted)
    return after


def verify_edit(file: str, text: str, after: str, launch: Launch, wanted: Sequence[str]) -> None:
    """Check that the edited text has the wanted words of this server, and all others. Raises FlagError."""
    before, read_again = read_launches(file, text), read_launches(file, after)
    place = before.index(launch)
    expected = [list(wanted) if at == place else texts(old) for at, old in enumerate(before)]
    read = [texts(new) for new in read_again]
    if any(word.form in ("key", "keyword") for word in launch.words):  # in a mapping the order says nothing
        expected, read = [sorted(words) for words in expected], [sorted(words) for words in read]
    if read != expected:
        raise FlagError("the file's form does not allow the change")


def texts(launch: Launch) -> list[str]:
    return [word.text for word in launch.words]
