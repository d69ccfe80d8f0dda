"""Marks of templates are told from values."""

import pytest

from flettner.vllm_facts.models.estimate import estimate_model
from flettner.vllm_facts.placeholders import is_placeholder
from flettner.vllm_facts.shell_command.serve_command import parse_command


@pytest.mark.parametrize(
    "mark",
    [
        *(
            "$X",
            "${X}",
            "$(X)",
            "{{ .Values.x }}",
            "{{x}}",
            "<your-model>",
            "<awq|gptq>",
            "[NUM_GPUS]",
            "%TP%",
        ),
        *("@TP@", "__TP__", "{model}", "REPLACE_ME", "CHANGEME", "REPLACE_WITH_LEN", "TODO", "XXXX"),
        *("YOUR_TOKEN", "your-org/your-model", "/path/to/your_model"),
    ],
)
def test_a_mark_of_a_template_is_no_value(mark: str) -> None:
    assert is_placeholder(mark)


@pytest.mark.parametrize(
    "value",
    ["org/model", "FLASH_ATTN", "auto", "4096", '{"a": {"b": 1}}', "NVFP4", "todo-list", '{{"a": 1}}', 4],
)
def test_a_value_is_no_mark(value: object) -> None:
    assert not is_placeholder(value)


def test_a_name_in_capitals_stands_for_a_number_where_one_is_wanted() -> None:
    assert is_placeholder("TP_SIZE", number=True)
    assert not is_placeholder("high", number=True)


def test_a_port_to_fill_in_is_unknown() -> None:
    assert parse_command(["vllm", "serve", "org/m", "--port", "PORT"]).exposure == {}


def test_a_model_to_fill_in_has_no_size() -> None:
    assert estimate_model("your-org/your-70b-model") is None
    assert estimate_model("org/some-70b-model") is not None
