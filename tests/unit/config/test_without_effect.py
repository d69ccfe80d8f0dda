"""What a config file says in vain is an error that names the key."""

import pytest

from flettner.agent.config import loader
from flettner.agent.domain.errors import ConfigError
from tests.unit.config.test_config import HERE, built

UNIX = 'listen = "unix:/run/flettner/api.sock"'


def problems(*, target: str = "", api: str = "", kind: str = "process", engine: str = "") -> str:
    text = f"""
        [api]
        {api}
        [[targets]]
        name = "chat"
        [targets.engine]
        kind = "{kind}"
        {engine}
        {target}
    """
    with pytest.raises(ConfigError) as error:
        loader.parse_config(text, here=HERE, build=built)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "key", "instead"),
    [
        ("process", "images", "commands"),
        ("docker", "commands", "images"),
        ("kubernetes", "commands", "images"),
    ],
)
def test_an_upgrade_that_the_engine_does_not_have_cannot_be_allowed(
    kind: str, key: str, instead: str
) -> None:
    said = problems(kind=kind, target=f'[targets.upgrades]\n{key} = ["/opt/x"]')

    assert said.startswith(f"[targets.upgrades] {key}: has no effect with kind = ")
    assert f"`{instead}`" in said


@pytest.mark.parametrize(
    ("api", "key"),
    [('tls_cert = "a"\ntls_key = "b"', "tls_cert"), ('trusted_proxies = ["127.0.0.1"]', "trusted_proxies")],
)
def test_what_only_an_address_needs_has_no_effect_at_a_unix_socket(api: str, key: str) -> None:
    assert problems(api=f"{UNIX}\n{api}").startswith(f"[api] {key}: has no effect at a unix socket")


@pytest.mark.parametrize(
    ("engine", "target", "said"),
    [
        ('strategy = "hot"', "[targets.quality]\nalways = true", "[targets.quality] always: with strategy"),
        ('strategy = "hot"', '[targets.upgrades]\nenv = ["A"]', "[targets.upgrades]: has no effect with"),
        ('strategy = "replace"', "", '[targets.engine] strategy: "replace" needs several servers'),
        (
            'strategy = "surge"',
            "[targets.rollout]\nhot_changes_per_day = 3",
            "[targets.rollout] hot_changes_per_day: has no effect",
        ),
        (
            "",
            "[targets.cost]\ncards = { L4 = 0.7 }",
            "[targets.cost] cards: has no effect without gpu_hour",
        ),
        (
            "",
            "[targets.traffic]\nhold_s = 0\nhold_requests = 4",
            "[targets.traffic] hold_requests: has no effect with hold_s = 0",
        ),
        (
            "",
            '[targets.windows]\nedge = "roll_back"',
            "[targets.windows] edge: has no effect without periods",
        ),
        (
            "",
            '[targets.windows]\noutside = "refuse"',
            "[targets.windows] outside: has no effect without periods",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_named(engine: str, target: str, said: str) -> None:
    assert problems(engine=engine, target=target).startswith(said)


@pytest.mark.parametrize(
    ("knob", "table", "said"),
    [
        ("max_num_seqs", "", ": is empty, and so limits nothing"),
        ("kv_cache_dtype", "octaves = 2", " octaves: has no effect, as kv_cache_dtype is no number"),
        ("enforce_eager", "min = 0", " min: has no effect, as enforce_eager is no number"),
        ("max_num_seqs", 'allowed = ["many"]', " allowed: 'many' is no value of it: max_num_seqs is a whole"),
        (
            "kv_cache_dtype",
            'allowed = ["fp9"]',
            " allowed: 'fp9' is no value of it: kv_cache_dtype is one of",
        ),
        ("max_num_seqs", "min = 4\nallowed = [2, 8]", " allowed: 2 is not within min and max"),
    ],
)
def test_a_bound_that_no_value_meets_is_named(knob: str, table: str, said: str) -> None:
    text = f"[targets.bounds.{knob}]\n{table}"

    assert problems(target=text).startswith(f"[targets.bounds.{knob}]{said}")


def test_what_says_no_more_than_the_default_is_no_error() -> None:
    text = """
        [windows]
        edge = "finish"
        [[targets]]
        name = "chat"
        [targets.engine]
        kind = "process"
        strategy = "surge"
        [targets.rollout]
        hot_changes_per_day = 24
        [targets.upgrades]
        images = []
    """

    assert loader.parse_config(text, here=HERE, build=built).targets
