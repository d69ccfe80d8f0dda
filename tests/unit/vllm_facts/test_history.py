"""The flags, values and JSON keys of each release."""

import json
from types import ModuleType

import pytest

from flettner.vllm_facts.deprecated_flags import ENVIRONMENT, RENAMED
from flettner.vllm_facts.knobs import FLAGS, KNOBS, release_of
from flettner.vllm_facts.meant_flags import meant_flags
from flettner.vllm_facts.releases import RELEASE, TABLE
from flettner.vllm_facts.releases.history import (
    came_later,
    describe_flag,
    find_default,
    has_flag,
    has_variable,
    is_covered,
    is_known_flag,
    keys_in,
    read_history,
    values_in,
)
from tests.support.scripts import load_script

PRESENT = f"{RELEASE[0]}.{RELEASE[1]}.0"
ONLY_FROM_THE_PARSER = frozenset(
    """
    all2all_backend anthropic_disabled_thinking_effort collect_detailed_traces mm_processor_device
    """.split()  # noqa: SIM905 - as elsewhere
)
"""Flags whose values vLLM changes or makes while it runs."""


@pytest.fixture
def script() -> ModuleType:
    return load_script("vllm_history")


def test_the_table_agrees_with_the_parser_of_the_release_that_has_one() -> None:
    flags = {flag for flag in read_history().flags if has_flag(flag, PRESENT)}

    assert flags == FLAGS


@pytest.mark.parametrize("flag", sorted(name for name, facts in TABLE.items() if facts.choices))
def test_the_values_agree_with_the_parser(flag: str) -> None:
    if flag not in ONLY_FROM_THE_PARSER and not TABLE[flag].several:
        assert values_in(flag, PRESENT) in ({str(choice) for choice in TABLE[flag].choices}, frozenset())


@pytest.mark.parametrize("flag", sorted(name for name, facts in TABLE.items() if facts.keys))
def test_the_keys_agree_with_the_parser(flag: str) -> None:
    assert keys_in(flag, PRESENT) in (TABLE[flag].keys, frozenset())


@pytest.mark.parametrize("flag", sorted(RENAMED))
def test_a_removed_flag_is_gone_from_the_release_that_removed_it(flag: str) -> None:
    if is_known_flag(flag):
        assert has_flag(flag, f"{RENAMED[flag].since}.0") is False
        assert f"{describe_flag(flag)}".count("since") == 0


def test_a_flag_of_the_catalogue_came_when_the_sources_say() -> None:
    early = {
        name for name, facts in KNOBS.items() if facts.since and has_flag(name, f"{facts.since}.0") is False
    }

    assert early == set()


@pytest.mark.parametrize(
    ("version", "covered"),
    [
        ("0.8.4", False),
        ("0.9.0", True),
        ("v0.20.2", True),
        ("0.33.7", True),
        ("0.34.0", False),
        ("dev", False),
    ],
)
def test_only_releases_of_the_table_are_judged(version: str, *, covered: bool) -> None:
    assert is_covered(version) is covered
    assert (has_flag("max_model_len", version) is None) is not covered
    assert (values_in("dtype", version) is None) is not covered


def test_a_release_has_the_values_of_its_own_package() -> None:
    assert "fp8_inc" in (values_in("kv_cache_dtype", "0.20.0") or ())
    assert "nvfp4" not in (values_in("kv_cache_dtype", "0.19.1") or ())
    assert "gguf" in (values_in("quantization", "0.12.0") or ())
    assert "gguf" not in (values_in("quantization", "0.32.0") or ())
    assert came_later("runner", "0.9.2")
    assert release_of("0.9.2")


@pytest.mark.parametrize("name", sorted(meant_flags()))
def test_a_meant_flag_is_one_of_vllm_and_the_name_is_none(name: str) -> None:
    meant = meant_flags()[name]

    assert not is_known_flag(name)
    assert name not in FLAGS
    assert meant.by.partition(".")[0] in FLAGS
    assert {flag.partition(".")[0] for flag in meant.to} <= FLAGS
    assert meant.how.endswith(".") or not meant.how
    assert bool(meant.to) + meant.by_hand + meant.needless <= 1
    assert meant.how or not (meant.by_hand or meant.needless)


ARGUMENTS = """
class EngineArgs:
    color: Color = "red"

def add_cli_args(parser):
    kwargs = get_kwargs(Config)
    parser.add_argument("--size", **kwargs["size"])
    parser.add_argument("--shape", "--form", choices=["round", "flat"])
    parser.add_argument("--part-config", **kwargs["part_config"])
    parser.add_argument("--color", **other["color"])
"""
CONFIG = """
Hue = Literal["red", "blue"]
Color = Hue | None

class Config:
    size: Literal["s", "m"] | None = None
    part_config: PartConfig = None

@dataclass(config=ConfigDict(extra="forbid"))
class PartConfig:
    mode: Literal["on", "off"] = "on"
    name: str | None = None
"""


def test_the_script_reads_flags_values_and_keys_from_sources(script: ModuleType) -> None:
    import ast  # noqa: PLC0415 - of the script's interface

    sources = script.Sources()
    sources.read("vllm/engine/arg_utils.py", ast.parse(ARGUMENTS))
    sources.read("vllm/config/part.py", ast.parse(CONFIG))

    assert set(sources.rows()) == {
        *(("flag", flag, "") for flag in ("size", "shape", "form", "part_config", "color")),
        *(("value", "size", value) for value in ("s", "m")),
        *(("value", "shape", value) for value in ("round", "flat")),
        *(("value", "color", value) for value in ("red", "blue")),
        *(("key", "part_config", key) for key in ("mode", "name")),
        *(("value", "part_config.mode", value) for value in ("on", "off")),
        ("default", "color", '"red"'),
    }


DEFAULTS = """
class EngineArgs:
    size: str | None = SizeConfig.size
    share: float = get_field(SizeConfig, "share")
    count: int | None = None
    size_config: SizeConfig = get_field(VllmConfig, "size_config")
"""
SIZES = """
class SizeConfig:
    size: str = "m"
    share: float = Field(default=0.9, gt=0)
    parts: list[str] = field(default_factory=list)
    _inner: int = 7
"""
VARIABLES = """
if TYPE_CHECKING:
    VLLM_PORT: int | None = None
    VLLM_HELPER: bool = False

environment_variables: dict[str, Callable] = {
    "VLLM_PORT": lambda: os.getenv("VLLM_PORT"),
}
"""


def test_the_script_reads_defaults_variables_and_metrics(script: ModuleType) -> None:
    import ast  # noqa: PLC0415 - of the script's interface

    sources = script.Sources()
    sources.read("vllm/engine/arg_utils.py", ast.parse(DEFAULTS))
    sources.read("vllm/config/size.py", ast.parse(SIZES))
    sources.read("vllm/envs.py", ast.parse(VARIABLES))
    sources.read("vllm/v1/metrics/loggers.py", ast.parse('gauge(name="vllm:running")'))

    assert set(sources.rows()) >= {
        ("default", "size", '"m"'),
        ("default", "share", "0.9"),
        ("default", "count", "null"),
        ("default", "size_config.share", "0.9"),
        ("default", "VLLM_PORT", "null"),
        ("variable", "VLLM_PORT", ""),
        ("metric", "vllm:running", ""),
    }
    assert not {"_inner", "VLLM_HELPER", "size_config.parts"} & {name for _, name, _ in sources.rows()}


@pytest.mark.parametrize("flag", sorted(name for name in read_history().defaults if name in TABLE))
def test_the_defaults_agree_with_the_parser(flag: str) -> None:
    text, parsed = find_default(flag, PRESENT), TABLE[flag].default
    default = None if text is None else json.loads(text)

    computed = text is None or parsed in {None, ""} or default is None
    assert computed or default == parsed


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_a_removed_variable_is_gone_from_the_release_that_removed_it(name: str) -> None:
    assert has_variable(name, f"{ENVIRONMENT[name].since}.0") is False
    assert has_variable(name, "0.10.0") or has_variable(name, "0.13.0") or has_variable(name, "0.17.0")


def test_spans_name_the_first_and_the_last_release(script: ModuleType) -> None:
    releases = ["0.9.0", "0.10.0", "0.11.0", "0.12.0"]

    assert script.spans([True, False, True, True], releases) == "0.9.0-0.9.0 0.11.0-"
    assert script.spans([False, True, True, False], releases) == "0.10.0-0.11.0"
