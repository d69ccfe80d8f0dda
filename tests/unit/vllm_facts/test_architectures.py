"""The architectures of each release, and the types of models of each Transformers."""

import tarfile
import zipfile
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from flettner.vllm_facts.models.table import LINES, find_row
from flettner.vllm_facts.releases.architectures import (
    FALLBACK_SINCE,
    find_model_type,
    find_requirement,
    first_release,
    is_kin_served,
    is_known,
    is_older,
    is_served,
    last_release,
    newest_release,
    read_architectures,
)
from flettner.vllm_facts.releases.history import read_history
from tests.support.scripts import load_script


@pytest.fixture
def script() -> ModuleType:
    return load_script("vllm_architectures")


def test_the_table_ends_with_the_newest_release_of_the_others() -> None:
    table = read_architectures()

    assert table.releases[-1] == read_history().releases[-1]
    assert set(read_history().releases) <= set(table.releases)
    assert list(table.releases) == sorted(table.releases)


def test_spans_are_in_order_and_apart() -> None:
    for name, spans in read_architectures().spans.items():
        ends = [place for span in spans for place in span]
        assert ends == sorted(ends), name
        assert all(after > before + 1 for (_, before), (after, _) in pairwise(spans)), name


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("LlamaForCausalLM", "0.2.0", ""),
        ("Qwen3ForCausalLM", "0.8.4", ""),
        ("GptOssForCausalLM", "0.10.1", ""),
        ("MotifForCausalLM", "0.10.2", "0.11.0"),
        ("Phi3SmallForCausalLM", "0.4.3", "0.9.2"),
        ("TransformersModel", FALLBACK_SINCE, "0.11.0"),
        ("NobodysForCausalLM", "", ""),
    ],
)
def test_an_architecture_has_its_releases(name: str, first: str, last: str) -> None:
    assert (first_release(name), last_release(name)) == (first, last)


@pytest.mark.parametrize(
    ("version", "served"),
    [
        ("0.8.3", False),
        ("v0.8.4", True),
        ("0.8", None),
        ("0.7", False),
        ("0.9", True),
        ("0.7.4", False),  # as its neighbours
        ("0.9.0.1", True),
        ("0.6.6.post1", False),
        ("0.8.2+cpu", False),
        ("0.8.2+rocm631", None),
        ("0.8.5rc1", None),
        ("0.8.4.dev3+gabcdef", None),
        ("nightly", None),
        ("0.1.4", None),
        ("99.0.0", None),
        ("", None),
    ],
)
def test_only_releases_are_judged(version: str, *, served: bool | None) -> None:
    assert is_served("Qwen3ForCausalLM", version) is served
    assert is_served("NobodysForCausalLM", "0.8.3") is None


def test_an_architecture_of_another_task_is_kin() -> None:
    assert is_kin_served("Qwen3Model", "0.8.4") is True
    assert is_kin_served("Qwen3Model", "0.8.3") is False
    assert is_kin_served("NobodysModel", "0.8.3") is None


def test_a_version_without_its_patch_is_the_last_one() -> None:
    assert is_older("0.7", FALLBACK_SINCE) is False
    assert is_older("0.6", FALLBACK_SINCE) is True
    assert is_older("nightly", FALLBACK_SINCE) is False


def test_the_releases_of_a_type_of_model_agree_with_their_requirements() -> None:
    glm = find_model_type("glm4_moe")

    assert glm == ("4.54.0", "0.10.1")
    assert find_requirement("0.10.0") == ("4.53.2", "", "4.53.2")
    assert find_requirement("0.10.1") == ("4.55.0", "", "4.55.0")
    assert find_requirement("0.12.0") == ("4.56.0", "5.0.0", "4.57.3")
    assert find_model_type("qwen3_vl") == ("4.57.1", "0.11.1")
    assert find_requirement("nightly") is None
    assert find_model_type("nobodys") is None


def test_most_architectures_of_the_known_models_are_in_the_table() -> None:
    rows = [row for row in map(find_row, LINES) if row is not None and row.architecture]
    missing = {row.architecture for row in rows if not is_known(row.architecture)}

    assert len(missing) < 0.1 * len({row.architecture for row in rows}), missing


REGISTRY = """
_TEXT_MODELS: dict[str, tuple[str, str]] = {"RoundForCausalLM": ("round", "RoundForCausalLM")}
_OLD_MODELS = {"FlatModel": ["flat", "FlatModel"]}
_TRANSFORMERS_SUPPORTED_MODELS = {"FlatModel": ("by", "T"), "OvalForCausalLM": ("by", "T")}
_PREVIOUSLY_SUPPORTED_MODELS = {"GoneForCausalLM": "0.1.0"}
_ROCM_PARTIALLY_SUPPORTED_MODELS: dict[str, str] = {"RoundForCausalLM": "slow"}
_MODELS = {**_TEXT_MODELS, **_OLD_MODELS}
"""
CONFIGS = '_CONFIG_REGISTRY: dict[str, type] = LazyConfigDict(oval="OvalConfig")'
AUTO = 'CONFIG_MAPPING_NAMES = OrderedDict([("round", "RoundConfig"), ("flat", "FlatConfig")])'
CLASSES = 'MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict([("round", "RoundForCausalLM")])'


def write_archive(folder: Path, name: str, files: dict[str, str]) -> None:
    if name.endswith(".whl"):
        with zipfile.ZipFile(folder / name, "w") as wheel:
            for file, text in files.items():
                wheel.writestr(file, text)
        return
    with tarfile.open(folder / name, "w:gz") as tar:
        for file, text in files.items():
            member = tarfile.TarInfo(f"top/{file}")
            member.size = len(text.encode())
            tar.addfile(member, BytesIO(text.encode()))


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    registry = "vllm/model_executor/models/registry.py"
    write_archive(
        tmp_path,
        "vllm-0.7.0.tar.gz",
        {
            registry: "_MODELS = {'FlatModel': ('flat', 'FlatModel')}",
            "requirements/common.txt": "transformers >= 4.1",
        },
    )
    write_archive(
        tmp_path,
        "vllm-0.8.0.post1.tar.gz",
        {
            registry: REGISTRY,
            "vllm/transformers_utils/config.py": CONFIGS,
            "requirements/common.txt": "torch\ntransformers >= 4.2.1, != 4.3.*, < 5 # for one model",
            "requirements/test.txt": "transformers==4.2.2\n    # via -r test.in",
        },
    )
    write_archive(
        tmp_path,
        "vllm-0.9.0-cp38-abi3-any.whl",
        {registry: REGISTRY, "vllm-0.9.0.dist-info/METADATA": "Requires-Dist: transformers<6,>=4.3"},
    )
    folder = "transformers/models/auto"
    write_archive(tmp_path, "transformers-4.1.0.tar.gz", {f"src/{folder}/configuration_auto.py": ""})
    write_archive(
        tmp_path,
        "transformers-4.2.2-py3-none-any.whl",
        {f"{folder}/configuration_auto.py": AUTO, f"{folder}/modeling_auto.py": CLASSES},
    )
    return tmp_path


def test_the_script_reads_registries_of_archives_and_wheels(script: ModuleType, archives: Path) -> None:
    releases = script.read_folder(archives, "vllm")

    assert list(script.list_architectures(releases)) == ["FlatModel\t0.7.0-", "RoundForCausalLM\t0.8.0-"]
    assert list(script.list_requirements(releases)) == [
        "0.7.0\t4.1.0\t\t",
        "0.8.0\t4.2.1\t5.0.0\t4.2.2",
        "0.9.0\t4.3.0\t6.0.0\t",
    ]


def test_the_script_finds_the_first_releases_for_a_type_of_model(script: ModuleType, archives: Path) -> None:
    rows = script.list_model_types(*(script.read_folder(archives, name) for name in ("vllm", "transformers")))

    assert list(rows) == ["oval\t\t0.8.0", "round\t4.2.2\t0.8.0"]


def test_the_script_refuses_archives_without_a_release(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "vllm-new.tar.gz").touch()

    with pytest.raises(SystemExit, match="no archive of vllm"):
        script.read_folder(tmp_path, "vllm")


def test_the_newest_release_is_that_of_the_catalogue() -> None:
    assert newest_release() == ".".join(map(str, read_history().releases[-1]))
