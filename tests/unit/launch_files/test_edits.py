"""Changes of words, written into the text: comments and layout stay, and the text is read as wanted."""

import pytest

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.edits import apply_edits, edit_words
from flettner.vllm_facts.launch_files.launch import Word
from flettner.vllm_facts.launch_files.recognise import read_launches
from tests.unit.launch_files.files import COMPOSE, FILES


def changed(name: str, text: str, which: int = 0) -> str:
    """The text without --swap-space, with one flag more."""
    launch = read_launches(name, text)[which]
    wanted = [word.text for word in launch.words]
    at = wanted.index("--swap-space")
    wanted[at : at + 2] = []
    wanted += ["--kv-cache-dtype", "fp8"]
    text = apply_edits(text, edit_words(text, launch.words, wanted))
    assert [word.text for word in read_launches(name, text)[which].words] == wanted
    return text


def test_items_of_a_list_are_removed_and_added_between_comments() -> None:
    text = changed("compose.yaml", COMPOSE)

    assert text == COMPOSE.replace('      - --swap-space\n      - "4"\n', "", 1).replace(
        "      - 64\n", '      - 64\n      - "--kv-cache-dtype"\n      - "fp8"\n'
    )


def test_folded_text_keeps_its_lines() -> None:
    text = changed("compose.yaml", COMPOSE, 1)

    assert text.endswith("      --model BAAI/bge-m3\n      --max-num-seqs 64\n      --kv-cache-dtype fp8\n")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        pytest.param(
            "deployment.yaml", " --swap-space 4 --enable-prefix-caching", "--kv-cache-dtype fp8", id="k8s"
        ),
        pytest.param(
            "lws.yaml",
            "                  --swap-space 4 \\\n",
            " \\\n                  --kv-cache-dtype fp8\n",
            id="a block",
        ),
        pytest.param("flags.txt", "--swap-space 4\n", "\n--kv-cache-dtype fp8\n", id="flags"),
        pytest.param("vllm.service", "  --swap-space 4 \\\n", " --kv-cache-dtype fp8\n", id="a unit"),
        pytest.param("run.sh", "  --swap-space 4\n", "--port $PORT", id="a script"),
    ],
)
def test_shell_words_change_in_place(name: str, old: str, new: str) -> None:
    text = changed(name, FILES[name])

    assert old not in text
    assert new in text


def test_number_in_a_flow_list_keeps_its_quotes() -> None:
    text = 'services: {a: {image: vllm/vllm-openai, command: ["m", "--max-num-seqs", "8"]}}\n'
    (launch,) = read_launches("compose.yaml", text)

    edits = edit_words(text, launch.words, ["vllm", "serve", "m", "--max-num-seqs", "64", "--x", "{}"])

    assert apply_edits(text, edits) == text.replace('"8"', '"64", "--x", "{}"')


def test_words_that_the_image_adds_cannot_be_changed() -> None:
    text = "services: {a: {image: vllm/vllm-openai, command: [m]}}\n"
    (launch,) = read_launches("compose.yaml", text)

    with pytest.raises(FlagError, match="serve is not written in the file"):
        edit_words(text, launch.words, ["vllm", "bench", "m"])


def test_different_edits_of_shared_words_are_refused() -> None:
    text = "a: b\n"
    word = Word(text="b", start=3, end=4, form="flow")

    with pytest.raises(FlagError, match="two servers share"):
        apply_edits(text, [*edit_words(text, [word], ["c"]), *edit_words(text, [word], ["d"])])
