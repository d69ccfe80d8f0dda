"""Which path of a command an error says is not there."""

import pytest

from flettner.lint.missing_paths import describe_missing_path
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Setting


@pytest.mark.parametrize(
    ("error", "setting", "flag"),
    [
        ("OSError: can't find '/m/a' here", {"model": "/m/a"}, "the model's path, /m/a,"),
        ("Repo id must be in the form 'a/b': '/m/a'.", {"model": "/m/a/"}, "the model's path, /m/a,"),
        (
            "No such file or directory: 'own.jinja'",
            {"chat_template": "own.jinja"},
            "--chat-template, own.jinja,",
        ),
        ("/l/b does not exist", {"lora_modules": "x=/l/b"}, "--lora-modules, /l/b,"),
        ("./d is not a directory", {"speculative_config": '{"model": "./d"}'}, "--speculative-config, ./d,"),
    ],
)
def test_the_flag_with_the_path_is_named(error: str, setting: Setting, flag: str) -> None:
    advice = describe_missing_path(error, ServeConfig(setting=setting))

    assert flag in advice
    assert "docker run -v" in advice


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        ("/m/ab does not exist", {"model": "/m/a"}),
        ("org/model does not exist", {"model": "org/model"}),
        ("/m/a is odd", {"model": "/m/a"}),
        ("/m/a/x.json does not exist", {"model": "/m/a"}),
        ("/x/m/a does not exist", {"model": "/m/a"}),
    ],
)
def test_another_path_or_a_name_on_a_hub_is_not(error: str, setting: Setting) -> None:
    assert describe_missing_path(error, ServeConfig(setting=setting)) == ""


def test_a_folder_of_the_hubs_cache_is_told_from_one_of_its_revisions() -> None:
    path = "/c/hub/models--org--small-1B"
    error = f"Repo id must be in the form 'a/b': '{path}'."

    assert "snapshots/" in describe_missing_path(error, ServeConfig(setting={"model": path}))
    assert "org/small-1B" in describe_missing_path(error, ServeConfig(setting={"model": path}))
