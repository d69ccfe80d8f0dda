"""V1: JSON values that vLLM cannot parse."""

import pytest

from flettner.lint.rules.json_flags import LINTS
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import case, findings, improved


@pytest.mark.parametrize(
    ("flags", "why", "to"),
    [
        ("--speculative-config {bad", "at character 2, near '{bad'", {}),
        ("""--compilation-config '{"x":'""", "at character 6, near '{\"x\":'", {}),
        ("""--hf-overrides '{"x": }'""", "--hf-overrides is not JSON", {}),
        ("-sc {method:ngram}", "its double quotes are gone", {}),
        (
            """-sc "{'method': 'ngram'}\"""",
            "JSON has double quotes",
            {"speculative_config": '{"method": "ngram"}'},
        ),
        (
            "--limit-mm-per-prompt image=2,video=1",
            "at character 1",
            {"limit_mm_per_prompt": '{"image": 2, "video": 1}'},
        ),
    ],
)
def test_reports_invalid_json_with_its_position(flags: str, why: str, to: dict[str, Value]) -> None:
    (found,) = findings(LINTS, case(f"vllm serve m {flags}"))

    assert (found.severity, found.to) == ("error", to)
    assert why in found.why


def test_pairs_were_the_form_of_limits_before_json() -> None:
    asked = "vllm serve m --limit-mm-per-prompt image=2"

    assert not findings(LINTS, case(asked, version="0.9.2"))
    assert findings(LINTS, case(asked, version="0.10.0"))


@pytest.mark.parametrize(
    "flags",
    [
        """-sc '{"method": "ngram", "num_speculative_tokens": 2}'""",
        """--kv-transfer-config '{"cpu_bytes_to_use": 80m}'""",
        "--hf-overrides my.module.function",
        "-cc.mode=3",
        """--speculative-config '' --compilation-config '{}'""",
    ],
)
def test_accepts_json_that_vllm_accepts(flags: str) -> None:
    assert not findings(LINTS, case(f"vllm serve m {flags}"))


@pytest.mark.parametrize(
    ("flags", "why", "better"),
    [
        (
            """--compilation-config '{"level": 3}'""",
            "has no key level: it is mode today",
            """--compilation-config '{"mode": 3}'""",
        ),
        ("-cc.level=3", "has no key level", "-cc.mode 3"),
        ("--compilation-config 3", "wants keys and values", """--compilation-config '{"mode": 3}'"""),
        ("""-cc '{"mode": 3, "nope": 1}'""", "has no key nope", """-cc '{"mode": 3}'"""),
        ("""--eplb-config '{"nope": 1}'""", "has no key nope", ""),
        ("--speculative-config.metod ngram", "it is method today", "--speculative-config.method ngram"),
    ],
)
def test_corrects_an_unknown_key(flags: str, why: str, better: str) -> None:
    command = f"vllm serve m {flags}"

    reported = findings(LINTS, case(command))

    assert [why in found.why for found in reported] == [True]
    assert improved(command, reported) == f"vllm serve m {better}".strip()
    assert not findings(LINTS, case(improved(command, reported)))


def test_does_not_judge_keys_of_other_releases() -> None:
    assert not findings(LINTS, case("""vllm serve m -cc '{"level": 3}'""", version="0.11.0"))


@pytest.mark.parametrize(
    ("version", "severities"), [("0.10.0", []), ("0.11.0", ["error"]), ("0.32.0", ["error"]), ("", ["info"])]
)
def test_a_compilation_level_is_an_error_where_the_release_refuses_it(
    version: str, severities: list[str]
) -> None:
    found = findings(LINTS, case("vllm serve m --compilation-config 3", version=version))

    assert [one.severity for one in found] == severities
