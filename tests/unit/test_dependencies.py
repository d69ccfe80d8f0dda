"""What flettner is installed with: from one index, each file with its hash, under fitting licences."""

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

INDEX = {"registry": "https://pypi.org/simple"}
FILES = "https://files.pythonhosted.org/packages/"
UNAVAILABLE = {"nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"}
"""Of the extra `vllm`: no file of theirs is locked, so none can be installed by the lock."""
LICENCES = re.compile(
    r"MIT|MIT-0|Apache(?: Software License|[- ]2\.0)|BSD-[23]-Clause|PSF-2\.0|CNRI-Python|MIT License"
    r"|Python Software Foundation License|MPL-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\)"
)

Package = dict[str, Any]


@pytest.fixture(scope="module")
def locked() -> list[Package]:
    with (Path(__file__).parents[2] / "uv.lock").open("rb") as file:
        packages: list[Package] = tomllib.load(file)["package"]
    return [package for package in packages if package["name"] != "flettner"]


def files(package: Package) -> list[dict[str, str]]:
    return [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]


def test_every_file_has_its_hash_and_comes_from_the_one_index(locked: list[Package]) -> None:
    assert {package["name"] for package in locked if package["source"] != INDEX} == set()
    for package in locked:
        for file in files(package):
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]), package["name"]
            assert file["url"].startswith(FILES), package["name"]


def test_nothing_is_locked_without_a_file(locked: list[Package]) -> None:
    assert {package["name"] for package in locked if not files(package)} <= UNAVAILABLE


def canonical(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def runtime(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """What is installed because of `name`, of extras only `daemon`."""
    name = canonical(name)
    if name in seen:
        return
    seen.add(name)
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:  # for another platform
        return
    yield distribution
    for wanted in distribution.requires or ():
        is_extra = "extra ==" in wanted and not wanted.endswith("extra == 'daemon'")
        if not is_extra and (match := re.match(r"[\w.-]+", wanted)):
            yield from runtime(match[0], seen)


def licences(of: metadata.PackageMetadata) -> list[str]:
    """In the packages' own words: an SPDX expression, a classifier, or a short text."""
    if "License-Expression" in of:
        return re.split(r" (?:AND|OR) ", of["License-Expression"])
    classified = [
        line.split(" :: ")[-1] for line in of.get_all("Classifier") or () if line.startswith("License")
    ]
    return classified or of.get_all("License") or ["none is named"]


def test_what_it_runs_with_has_a_licence_that_goes_with_ours() -> None:
    licences_by_name = {
        distribution.metadata["Name"]: licences(distribution.metadata)
        for distribution in runtime("flettner", set())
    }

    assert len(licences_by_name) > 20
    assert {
        name: all(map(LICENCES.fullmatch, texts)) for name, texts in licences_by_name.items()
    } == dict.fromkeys(licences_by_name, True)


def test_what_it_runs_with_is_installed_as_it_is_locked(locked: list[Package]) -> None:
    versions = {package["name"]: package["version"] for package in locked}
    installed = {
        canonical(distribution.metadata["Name"]): distribution.version
        for distribution in runtime("flettner", set())
    }
    del installed["flettner"]

    assert installed == {name: versions[name] for name in installed}
