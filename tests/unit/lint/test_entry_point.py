"""A model that the module `api_server` does not read."""

from flettner.lint.rules import entry_point
from tests.support.lint_cases import case, findings

MODULE = "python3 -m vllm.entrypoints.openai.api_server"


def test_a_model_without_its_flag_is_named_with_it() -> None:
    (finding,) = findings(entry_point.LINTS, case(f"{MODULE} Qwen/Qwen3-8B", version="0.11.0"))

    assert finding.to["model"] == "Qwen/Qwen3-8B"


def test_a_flag_that_lacks_its_dashes_is_not_taken_for_the_name_of_a_model() -> None:
    (finding,) = findings(entry_point.LINTS, case(f"{MODULE} model", version="0.11.0"))

    assert (finding.severity, dict(finding.to)) == ("error", {})
    assert "--model and its value" in finding.expects
