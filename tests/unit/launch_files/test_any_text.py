"""Any text is read, or refused with a FlagError: files are cut, mistyped and of other programs."""

from hypothesis import example, given
from hypothesis import strategies as st

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.edits import apply_edits, edit_words
from flettner.vllm_facts.launch_files.recognise import read_launches
from tests.unit.launch_files.files import FILES

PIECES = (
    *(
        "'",
        '"',
        "`",
        "$(",
        "${",
        "}",
        "(",
        ")",
        "\\",
        "\n",
        "\t",
        "- ",
        ": ",
        "&a ",
        "*a",
        "<<EOF\n",
        "|",
        ">",
    ),
    *("#", "%", "[", "]", "---\n", "$X", '"$@"', "\r\n", "\0", "=", "+=", "vllm serve ", "sh -c ", "eval "),
    *("{{ .x }}", "{{- if .a }}\n", "{{- end }}\n", "{% x %}"),
)
MUTATIONS = st.lists(
    st.tuples(st.integers(0, 2000), st.sampled_from((0, 1, 3, 20)), st.sampled_from(PIECES)), max_size=5
)


@given(st.sampled_from(sorted(FILES)), MUTATIONS)
@example("flags.txt", [(54, 20, "\\")])
def test_text_is_read_or_refused(name: str, mutations: list[tuple[int, int, str]]) -> None:
    text = FILES[name]
    for at, cut, piece in mutations:
        at %= len(text) + 1  # noqa: PLW2901
        text = text[:at] + piece + text[at + cut :]
    try:
        launches = read_launches(name, text)
    except FlagError:
        return

    for launch in launches:
        same = edit_words(text, launch.words, [word.text for word in launch.words])
        assert apply_edits(text, same) == text
        assert 0 <= launch.start <= len(text)
        assert all(0 <= word.start <= word.end <= len(text) for word in launch.words)


@given(st.text(), st.sampled_from(("a.yaml", "a.sh", "a.service", "flags.txt")))
def test_arbitrary_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        read_launches(name, text)
    except FlagError as error:
        assert str(error)  # noqa: PT017
