"""Where `flettner lint` takes a model's numbers from: its config.json, the cache, the table, its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_configs import COUNTED

Lint = Callable[..., tuple[int, str, str]]
CONFIG = COUNTED["Qwen/Qwen3-8B"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a cache of models."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def linted(lint: Lint, *argv: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(lint("--json", *argv)[1])
    return document


def cache(hub: Path, name: str, text: str, *, commit: str = "0a1b2c", revision: str = "main") -> Path:
    model = hub / f"models--{name.replace('/', '--')}"
    snapshot = model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir(exist_ok=True)
    (model / "refs" / revision).write_text(commit)
    (snapshot / "config.json").write_text(text)
    return snapshot


def serve(name: str, *flags: str) -> tuple[str, ...]:
    return ("--", "vllm", "serve", name, *flags)


def test_a_downloaded_model_is_known_from_the_cache(lint: Lint, home: Path) -> None:
    snapshot = cache(home / ".cache/huggingface/hub", "acme/own", json.dumps(CONFIG))

    document = linted(lint, *serve("acme/own"))

    assert document["model"]["source"] == str(snapshot / "config.json")
    assert document["model"]["estimate"] is False
    assert not any("the model" in fact for fact in document["unknown"])


@pytest.mark.parametrize(
    ("variable", "folder"),
    [("HF_HOME", "hf/hub"), ("HF_HUB_CACHE", "hf"), ("XDG_CACHE_HOME", "hf/huggingface/hub")],
)
def test_the_variables_of_the_server_name_the_cache(
    lint: Lint, home: Path, variable: str, folder: str
) -> None:
    cache(home / folder, "acme/own", json.dumps(CONFIG))

    document = linted(lint, "--env", f"{variable}={home / 'hf'}", *serve("acme/own"))

    assert document["model"]["estimate"] is False


def test_the_download_folder_and_the_revision_choose_the_snapshot(lint: Lint, home: Path) -> None:
    cache(home / "weights", "acme/own", json.dumps(CONFIG))
    old = cache(home / "weights", "acme/own", json.dumps(CONFIG), commit="9f8e7d", revision="v1")

    named = serve("acme/own", "--download-dir", str(home / "weights"))

    assert linted(lint, *named, "--revision", "v1")["model"]["source"] == str(old / "config.json")
    assert linted(lint, *named, "--revision", "9f8e7d")["model"]["source"] == str(old / "config.json")
    assert linted(lint, *named, "--revision", "v2")["model"] is None
    assert linted(lint, *named, "--revision", "../v1")["model"] is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_download_that_was_cut_off_gives_way_to_the_table(lint: Lint, home: Path, text: str) -> None:
    cache(home / ".cache/huggingface/hub", "Qwen/Qwen3-8B", text)

    assert linted(lint, *serve("Qwen/Qwen3-8B"))["model"]["parameters"] == pytest.approx(8.2e9, rel=0.01)


@pytest.mark.parametrize("name", ["../../etc", "a/b/c", "..", ".cache/x", "acme/..", "acme"])
def test_only_the_name_of_a_repository_is_looked_up_in_the_cache(lint: Lint, home: Path, name: str) -> None:
    (home / ".cache/huggingface/hub").mkdir(parents=True)

    assert linted(lint, *serve(name))["model"] is None


def test_the_index_of_the_weights_gives_the_size_of_an_unknown_family(lint: Lint, home: Path) -> None:
    snapshot = cache(
        home / ".cache/huggingface/hub", "acme/own", json.dumps(CONFIG | {"model_type": "of_tomorrow"})
    )
    index = snapshot / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 14e9}}))

    assert linted(lint, *serve("acme/own"))["model"]["parameters"] == 7e9

    index.write_text("{}")
    assert linted(lint, *serve("acme/own"))["model"]["parameters"] is None


def test_the_size_in_a_name_is_an_estimate_that_says_so(lint: Lint) -> None:
    document = linted(lint, "--gpu", "H100", *serve("acme/novel-7B-AWQ"))

    assert document["model"]["estimate"] is True
    assert document["model"]["source"] == "the model's name"
    (fact,) = [fact for fact in document["unknown"] if "model" in fact]
    assert "by its name about 7 billion parameters in awq, an estimate (--model-config FILE)" in fact


def test_an_estimate_remarks_on_weights_that_cannot_fit_and_changes_nothing(lint: Lint) -> None:
    document = linted(lint, "--gpu", "L4", "--gpus", "8", *serve("acme/novel-70B"))

    (row,) = [row for row in document["findings"] if row["rule"] == "D2"]
    assert (row["severity"], row["knob"], row["class"]) == ("warning", None, "note")
    assert "an estimate: 130 GiB of weights for each of 1 x L4 with 22.49 GiB" in row["why"]
    assert "tensor" not in " ".join(document["command"])


@pytest.mark.parametrize(
    "argv",
    [
        ("--gpu", "H100", *serve("acme/novel-7B")),
        ("--gpu", "L4", *serve("acme/novel-70B", "--quantization", "fp8")),
        ("--gpu", "L4", *serve("acme/novel-70B", "--cpu-offload-gb", "200")),
        ("--gpu", "L4", *serve("acme/novel-70B-GGUF")),
        ("--gpu", "L4", *serve("acme/novel-70B", "-tp", "8")),
    ],
)
def test_an_estimate_that_leaves_a_doubt_makes_no_remark(lint: Lint, argv: tuple[str, ...]) -> None:
    assert not [row for row in linted(lint, *argv)["findings"] if row["rule"] == "D2"]
