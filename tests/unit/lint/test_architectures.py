"""Models that a release of vLLM, or the installed Transformers, does not know."""

from dataclasses import replace
from typing import Any

import pytest

from flettner.lint.migration import migrate_flags
from flettner.lint.rules import all_lints
from flettner.lint.rules.architectures import LINTS
from flettner.vllm_facts.serve_config import Container, Finding, Model, ServeConfig
from tests.support.lint_cases import case, findings
from tests.support.proposals import rules

GLM = Model(name="own/glm", architecture="Glm4MoeForCausalLM", model_type="glm4_moe")
QWEN_3 = Model(name="own/qwen", architecture="Qwen3ForCausalLM", model_type="qwen3")
QWEN_35 = Model(name="own/new", architecture="Qwen3_5MoeForConditionalGeneration", model_type="qwen3_5_moe")
GONE = Model(name="own/gone", architecture="MotifForCausalLM", model_type="Motif")


def unsupported(name: str) -> str:
    return f"ERROR core.py:9] ValueError: Model architectures ['{name}'] are not supported for now."


def unrecognised(kind: str) -> str:
    return (
        f"Value error, The checkpoint you are trying to load has model type `{kind}` but "
        "Transformers does not recognize this architecture. [type=value_error]"
    )


def found(model: Model | None, version: str, flags: str = "", **facts: Any) -> tuple[Finding, ...]:  # noqa: ANN401 - the fields of ServeConfig
    return findings(LINTS, case(f"vllm serve m {flags}", version=version, model=model, **facts))


@pytest.mark.parametrize(
    ("model", "version", "flags", "severity", "words"),
    [
        (QWEN_3, "0.7.1", "", "error", ("before 0.7.2", "vLLM 0.8.4 or newer", "--upgrade-to 0.8.4")),
        (QWEN_3, "0.7.2", "", "warning", ("transformers, 4.51.0 or newer, runs it",)),
        (QWEN_3, "0.8.3", "--model-impl vllm", "error", ("--model-impl vllm leaves out",)),
        (QWEN_3, "0.8", "", "", ()),  # which of its patches is not known
        (QWEN_3, "0.7", "--model-impl vllm", "error", ()),
        (QWEN_3, "0.8.4", "", "", ()),
        (QWEN_3, "0.8.3rc1", "", "", ()),
        (QWEN_3, "0.8.4.dev12+g1234567", "", "", ()),
        (QWEN_3, "0.7.1.post1", "", "error", ()),
        (QWEN_3, "0.7.1+cu118", "", "error", ()),
        (QWEN_3, "", "", "", ()),
        (QWEN_3, "0.1.2", "", "", ()),
        (QWEN_3, "7.1.0", "", "", ()),
        (QWEN_35, "0.14.0", "", "error", ("transformers below 5.0.0", "vLLM 0.17.0 or newer")),
        (QWEN_35, "0.14.0", "--trust-remote-code", "warning", ()),
        (QWEN_35, "0.14.0", "--model-impl transformers", "", ()),
        (QWEN_35, "0.14.0", '--hf-overrides \'{"architectures": ["Own"]}\'', "", ()),
        (QWEN_35, "0.14.0", "--hf-overrides.architectures Own", "", ()),
        (QWEN_35, "0.14.0", "--hf-overrides @own", "", ()),
        (QWEN_35, "0.14.0", "--config-format mistral", "", ()),
        (QWEN_35, "0.14.0", "--quantization gguf", "", ()),
        (GONE, "0.12.0", "", "warning", ("no longer implements", "vLLM 0.11.0 is the last release")),
        (GONE, "0.10.2", "", "", ()),
        (replace(QWEN_3, architecture="NobodysForCausalLM"), "0.7.1", "", "", ()),
        (replace(QWEN_3, architecture=""), "0.7.1", "", "", ()),
        (None, "0.7.1", "", "", ()),
    ],
)
def test_a_release_that_lacks_the_architecture_is_told_before_the_start(
    model: Model | None, version: str, flags: str, severity: str, words: tuple[str, ...]
) -> None:
    reported = found(model, version, flags)

    assert [finding.severity for finding in reported] == ([severity] if severity else [])
    assert all(word in f"{finding.why}; {finding.expects}" for finding in reported for word in words)


def test_a_task_for_which_the_release_exchanges_the_head_is_served() -> None:
    scores = replace(QWEN_3, architecture="Qwen3ForSequenceClassification")

    assert found(scores, "0.8.5") == ()


@pytest.mark.parametrize(
    "line",
    ["INFO [api_server.py:1] Application startup complete.", unsupported("Qwen3ForCausalLM")],
)
def test_a_log_of_the_start_has_the_last_word(line: str) -> None:
    reported = found(QWEN_3, "0.7.1", log=(line,))

    assert len(reported) == ("not supported" in line)


@pytest.mark.parametrize(
    ("image", "count"),
    [
        ("vllm/vllm-openai:v0.7.1", 1),
        ("mirror.example/vllm/vllm-openai:v0.7.1", 1),
        ("rocm/vllm:rocm6.3.1_vllm_0.7.1_20250101", 0),
        ("example/own-vllm:0.7.1", 0),
        ("", 1),
    ],
)
def test_an_image_of_others_may_know_more(image: str, count: int) -> None:
    container = Container(launcher="docker run", image=image)

    assert len(found(QWEN_3, "0.7.1", container=container)) == count


def test_a_model_that_mistrals_own_files_name_otherwise_is_not_judged() -> None:
    model = Model(name="own/m", architecture="Ministral3ForCausalLM", model_type="ministral3")

    assert found(model, "0.13.0") == ()


def test_the_remedy_names_the_transformers_that_its_first_releases_need() -> None:
    (finding,) = found(GLM, "0.9.2")

    assert "vLLM 0.10.0 or newer" in finding.expects
    assert "before 0.10.1 with transformers 4.54.0 or newer" in finding.expects


def test_a_plugin_may_bring_the_architecture() -> None:
    assert found(QWEN_3, "0.7.1", env="VLLM_PLUGINS=own") == ()


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("Glm4MoeForCausalLM", "0.9.2", ("vLLM 0.9.2 does not implement", "vLLM 0.10.0 or newer")),
        ("Glm4MoeForCausalLM", "", ("does not know the architecture", "vLLM 0.10.0 or newer")),
        ("Glm4MoeForCausalLM", "0.9.3.dev7", ("vLLM 0.10.0 or newer",)),
        ("Glm4MoeForCausalLM", "0.12.0", ("its code did not load", "another release wrote the log")),
        ("MotifForCausalLM", "0.12.0", ("no longer implements", "vLLM 0.11.0 is the last")),
        ("MotifForCausalLM", "", ("vLLM 0.10.2 to 0.11.0 implement it",)),
        ("NobodysForCausalLM", "0.9.2", ("no release up to", "since 0.7.2 tries that")),
        ("Glm4MoeForTokenClassification", "0.9.2", ("a newer vLLM",)),
    ],
)
def test_an_unsupported_architecture_is_led_to_the_release_that_has_it(
    name: str, version: str, words: tuple[str, ...]
) -> None:
    (finding,) = found(None, version, log=(unsupported(name),))

    assert (finding.rule, finding.severity) == ("V1", "error")
    assert all(word in f"{finding.why}; {finding.expects}" for word in words), finding


def test_an_architecture_that_the_message_itself_lists_did_not_load() -> None:
    line = f"{unsupported('OwnForCausalLM')} Supported architectures: ['AForCausalLM', 'OwnForCausalLM']"
    (finding,) = found(None, "", log=(line,))

    assert "its code did not load" in finding.why


@pytest.mark.parametrize(
    "line",
    [
        "Qwen3ForCausalLM has no vLLM implementation and the Transformers implementation is not compatible",
        "ValueError: Model architectures ['Qwen3ForCausalLM', 'Other'] are not supported for now.",
        "ValueError: Model architecture Qwen3ForCausalLM was supported in vLLM until v9.9, and is not now",
    ],
)
def test_the_architecture_is_read_from_each_form_of_the_message(line: str) -> None:
    (finding,) = found(None, "0.7.3", log=(line,))

    assert "does not implement Qwen3ForCausalLM" in finding.why
    assert "vLLM 0.8.4 or newer" in finding.expects


@pytest.mark.parametrize(
    ("kind", "version", "model", "words", "no"),
    [
        ("glm4_moe", "0.9.2", GLM, ("4.54.0 is the first", "vllm-openai:v0.10.1"), "beside"),
        (
            "glm4_moe",
            "0.10.0",
            GLM,
            ("vLLM 0.10.1 or newer", "4.54.0 or newer beside vLLM 0.10.0"),
            "another",
        ),
        ("glm4_moe", "0.12.0", None, ("4.57.3 or newer, with which vLLM 0.12.0 is tested",), "0.10.1"),
        ("glm4_moe", "", None, ("vLLM 0.10.1 or newer",), "beside"),
        ("qwen3_5_moe", "0.14.0", None, ("vLLM 0.17.0 or newer",), "beside"),
        ("qwen3_5_moe", "0.17.0", None, ("another release wrote the log",), "tested"),
        ("nobodys", "0.9.2", None, ("the type nobodys", "a newer vLLM"), "0.9"),
    ],
)
def test_a_type_that_transformers_does_not_know_is_led_to_its_first_release(
    kind: str, version: str, model: Model | None, words: tuple[str, ...], no: str
) -> None:
    (finding,) = found(model, version, log=(unrecognised(kind),))

    assert finding.rule == "F9"
    assert all(word in f"{finding.why}; {finding.expects}" for word in words), finding
    assert no not in finding.expects


def test_the_log_of_an_unknown_architecture_needs_no_other_explanation() -> None:
    config = case("vllm serve m", version="0.9.2", log=(unsupported("Glm4MoeForCausalLM"),))
    reported = [finding for lint in all_lints() for finding in lint.check(config)]

    assert "V1" in rules(reported)
    assert "F10" not in rules(reported)


def test_a_downgrade_below_the_first_release_is_refused() -> None:
    argv = ("vllm", "serve", "Qwen/Qwen3-8B")
    _, _, down = migrate_flags(argv, {}, old="0.20.0", new="0.14.0")
    _, _, refused = migrate_flags(argv, {}, old="0.20.0", new="0.14.0", model=QWEN_35)

    assert not down.refused
    assert ["does not implement" in row.finding.why for row in refused.refused] == [True]


def test_a_command_without_a_model_reads_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: str) -> list[str]:
        raise AssertionError("a table was read")

    monkeypatch.setattr("flettner.vllm_facts.releases.architectures._read_lines", read)
    config = ServeConfig(setting={"model": "m"}, version="0.12.0")

    assert findings(LINTS, config) == ()
