"""docs/kubernetes.md names the versions of Kubernetes that the tests and the chart are made for."""

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
SECTION = (
    (REPOSITORY / "docs" / "kubernetes.md").read_text().partition("\n## Versions\n")[2].partition("\n## ")[0]
)
CHART = REPOSITORY / "deploy" / "helm" / "flettner" / "Chart.yaml"
CHECKED = REPOSITORY / "tests" / "integration" / "packaging" / "test_chart.py"


def constant(name: str) -> str:
    """Of scripts/kubernetes."""
    match = re.search(rf"\b{name}=([0-9.]+)", (REPOSITORY / "scripts" / "kubernetes").read_text())
    assert match, name
    return match[1]


@pytest.mark.parametrize(("name", "argument"), [("OLDEST", "install"), ("CURRENT", "install current")])
def test_the_page_says_how_each_version_is_installed(name: str, argument: str) -> None:
    [row] = re.findall(rf"^\| {re.escape(constant(name))} \|.*", SECTION, re.MULTILINE)
    assert f"`scripts/kubernetes {argument}`" in row


def test_the_page_names_the_version_of_etcd() -> None:
    match = re.search(r"etcd-server_([0-9.]+)-", (REPOSITORY / "scripts" / "kubernetes").read_text())
    assert match
    assert f"Debian's {match[1]}" in SECTION


def test_the_page_names_the_schemas_that_the_manifests_are_checked_against() -> None:
    versions = re.search(r"^VERSIONS = \((.*)\)$", CHECKED.read_text(), re.MULTILINE)
    assert versions
    first, *_, last = re.findall(r"[0-9.]+", versions[1])
    assert f"| {first} to {last} | the schemas of these versions |" in SECTION


def test_the_page_names_the_oldest_version_that_the_chart_takes() -> None:
    minor = re.fullmatch(r">=([0-9]+\.[0-9]+)\.0-0", yaml.safe_load(CHART.read_text())["kubeVersion"])
    assert minor
    assert f"Kubernetes {minor[1]} or newer" in SECTION
