"""`[targets.quality]`: custom golden prompts, a custom command, and errors."""

from pathlib import Path

import pytest

from flettner.agent.config import loader
from flettner.agent.config.loader import Target
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.quality.golden_prompts import LEAST, PROMPTS, GoldenPromptOptions
from tests.unit.config.test_config import SMALLEST, built

LINES = [f"prompt number {number}" for number in range(10)]


def target(text: str, here: Path = Path("/etc/flettner")) -> Target:
    (loaded,) = loader.parse_config(f"{SMALLEST}[targets.quality]\n{text}\n", here=here, build=built).targets
    return loaded


def test_uses_the_shipped_prompts_by_default() -> None:
    assert target("").quality == GoldenPromptOptions()
    assert len(set(PROMPTS)) == len(PROMPTS) >= LEAST


def test_reads_every_option(tmp_path: Path) -> None:
    lines = [*LINES, "", LINES[0], '{"prompt": "of\\ntwo lines", "id": 7}']
    (tmp_path / "golden.jsonl").write_text("\n".join(lines))
    text = """
        prompts = "golden.jsonl"
        command = ["lm_eval", "--url", "{green}/v1"]
        always = true
        at_most = "30m"
    """

    assert target(text, tmp_path).quality == GoldenPromptOptions(
        prompts=(*LINES, "of\ntwo lines"),
        own=True,
        command=("lm_eval", "--url", "{green}/v1"),
        always=True,
        at_most_s=1800,
    )


def test_reads_the_prefixes_of_clients_prompts(tmp_path: Path) -> None:
    lines = ['{"system": "You are\\nkind."}', "", '{"prompt": "SELECT", "model": "sql"}']
    (tmp_path / "prefixes.jsonl").write_text("\n".join(lines))

    assert target("prefixes = 'prefixes.jsonl'", tmp_path).quality.prefixes == (
        SharedPrefix(text="You are\nkind.", chat=True),
        SharedPrefix(text="SELECT", model="sql"),
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("\n", "has 0 different prefixes: give 1 to 100"),
        ("You are kind.", "line 1 is no JSON"),
        ('{"system": ""}', 'line 1 must be {"system": "…"} or {"prompt": "…"}'),
        ('{"system": "a", "modle": "sql"}', 'line 1 must be {"system": "…"}'),
        ("\n".join(f'{{"system": "{number}"}}' for number in range(101)), "has 101 different prefixes"),
    ],
)
def test_rejects_a_file_without_valid_prefixes(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "prefixes.jsonl").write_text(content)

    with pytest.raises(ConfigError) as error:
        target("prefixes = 'prefixes.jsonl'", tmp_path)

    assert str(error.value).startswith(
        f"[targets.quality] prefixes: {tmp_path / 'prefixes.jsonl'}: {expected}"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("promts = 'x'", "[targets.quality] promts: unknown key; did you mean prompts?"),
        (
            "prompts = 'nowhere.txt'",
            "[targets.quality] prompts: /etc/flettner/nowhere.txt: cannot be read: No",
        ),
        ("prompts = 5", "[targets.quality] prompts: must be a path, not 5"),
        ("command = ['lm_eval']", "[targets.quality] command: has no {green} in any argument"),
        ("command = 'lm_eval {green}'", "[targets.quality] command: must be a list"),
        ("always = 1", "[targets.quality] always: must be true or false, not 1"),
        ("at_most = 0", "[targets.quality] at_most: must be longer than 0 s"),
    ],
)
def test_names_an_invalid_option(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        target(text)

    assert str(error.value).startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\ntwo\n", "has 2 different prompts: give 8 to 1000"),
        (b"the same\n" * 20, "has 1 different prompts"),
        (b'{"prompt": "a"}\n{"prompt"\n', "line 2 starts like JSON but is invalid"),
        (b'{"text": "a"}\n', 'line 1 has no "prompt" string'),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"x" * (2**20 + 1), "cannot be read: it is larger than 1 MiB"),
        (b"\n".join(b"%d" % number for number in range(1001)), "has 1001 different prompts"),
    ],
)
def test_rejects_a_file_without_valid_prompts(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "golden.txt").write_bytes(content)

    with pytest.raises(ConfigError) as error:
        target("prompts = 'golden.txt'", tmp_path)

    assert str(error.value).startswith(f"[targets.quality] prompts: {tmp_path / 'golden.txt'}: {expected}")
