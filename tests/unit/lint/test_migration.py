"""A command line of one release for another: held against the table of each release's own sources."""

import json
import random
from itertools import permutations

import pytest

from flettner.lint.migration import Migration, migrate_flags
from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.flag_table import SEVERAL, is_switch
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.releases.history import (
    has_flag,
    has_variable,
    keys_in,
    open_keys_in,
    read_history,
    values_in,
)
from flettner.vllm_facts.serve_config import GpuModel
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.sampling import sampled

RELEASES = [".".join(map(str, release)) for release in read_history().releases]
PAIRS = list(permutations(RELEASES, 2))
FLAGS_IN_A_LINE = 6
NEVER = frozenset({"api_key", "config", "help", "host", "model", "omni", "port", "version"}) | {
    "reasoning_parser_plugin",
    "tool_parser_plugin",
}


def _write_flag(flag: str, release: str, draw: random.Random) -> list[str]:
    """The words of the flag with a value that the release takes."""
    spelled = "--" + flag.replace("_", "-")
    keys = sorted((keys_in(flag, release) or frozenset()) | (open_keys_in(flag, release) or frozenset()))
    facts = KNOBS.get(flag)
    if keys:
        key = draw.choice(keys)
        value = draw.choice(sorted(values_in(f"{flag}.{key}", release) or ["1"]))
        whole = [spelled, json.dumps({key: value})]
        return draw.choice([whole, [f"{spelled}.{key}", value]])
    if is_switch(flag):
        return [spelled]
    if choices := values_in(flag, release):
        return [spelled, draw.choice(sorted(choices))]
    number = int(facts.min) + 1 if facts and facts.type == "int" and facts.min is not None else 1
    return [spelled, "{}"] if facts and facts.type == "json" else [spelled, str(number)]


def _write_line(release: str, draw: random.Random) -> list[str]:
    flags = [flag for flag in read_history().flags if has_flag(flag, release) and flag not in NEVER]
    chosen = draw.sample(flags, FLAGS_IN_A_LINE)
    return ["vllm", "serve", "m/m", *(word for flag in chosen for word in _write_flag(flag, release, draw))]


def _migrate(line: str, old: str, new: str, **env: str) -> tuple[str, dict[str, str], Migration]:
    argv, variables, migration = migrate_flags(line.split(), env, old=old, new=new)
    return " ".join(argv), variables, migration


def _cases() -> list[tuple[str, str, int]]:
    """Every pair of releases, with three command lines."""
    cases = [(old, new, seed) for old, new in PAIRS for seed in range(3)]
    return sampled(cases, 89)  # a prime: each release is on each side


def test_a_migrated_line_has_only_flags_values_and_keys_of_the_new_release() -> None:
    for old, new, seed in _cases():
        line = _write_line(old, random.Random(f"{old} {new} {seed}"))  # noqa: S311 - a replayable draw

        argv, _, migration = migrate_flags(line, {}, old=old, new=new)

        setting, where = parse_setting(argv), f"{old} to {new}: {line} -> {argv}"
        for knob, value in setting.items():
            flag, _, key = knob.partition(".")
            assert has_flag(flag, new), f"{knob}: {where}"
            strict, read = keys_in(flag, new) or frozenset(), open_keys_in(flag, new) or frozenset()
            entries = json.loads(value) if isinstance(value, str) and value.startswith("{") else {}
            for name in filter(None, (key, *entries)):
                ignored = any(name in row.finding.why for row in migration.differences)
                assert not strict or name in strict or name in read or ignored, f"{knob} {name}: {where}"
            taken = {choice.lower().replace("-", "_") for choice in values_in(knob, new) or ()}
            refused = any(str(value) in row.before for row in migration.refused)
            anything = not taken or knob in SEVERAL or isinstance(value, bool)
            assert anything or str(value).lower().replace("-", "_") in taken or refused, f"{knob}: {where}"
        assert migrate_flags(argv, {}, old=new, new=new)[2].differences == ()
        dropped = parse_setting(line).keys() - setting.keys()
        assert all(_is_accounted_for(knob, migration) for knob in dropped), where


def _is_accounted_for(knob: str, migration: Migration) -> bool:
    spelled = "--" + knob.partition(".")[0].replace("_", "-")
    return any(spelled in row.before or knob in row.finding.to for row in migration.differences)


def test_a_migration_to_the_same_release_changes_nothing() -> None:
    for release in RELEASES:
        line = _write_line(release, random.Random(release))  # noqa: S311 - a replayable draw

        argv, _, migration = migrate_flags(line, {}, old=release, new=release)

        assert argv == line
        assert migration.differences == ()


@pytest.mark.parametrize(
    ("flags", "old", "new", "after"),
    [
        ("--cuda-graph-sizes 1 2 4", "0.12.0", "0.13.0", "--cudagraph-capture-sizes 1 2 4"),
        ("--disable-log-requests", "0.16.0", "0.17.0", ""),
        ("--swap-space 4", "0.11.0", "0.33.0", ""),
        ("--task generate", "0.11.0", "0.33.0", "--runner generate"),
        ("--task auto", "0.10.0", "0.33.0", ""),
        ("--num-redundant-experts 4", "0.11.0", "0.33.0", "--eplb-config.num_redundant_experts 4"),
        (
            "--guided-decoding-disable-any-whitespace",
            "0.10.2",
            "0.33.0",
            "--structured-outputs-config.disable_any_whitespace true",
        ),
        ('--compilation-config {"level":3}', "0.11.0", "0.33.0", '--compilation-config {"mode": 3}'),
        ("--compilation-config.mode 3", "0.33.0", "0.10.2", "--compilation-config.level 3"),
        (
            '--structured-outputs-config {"backend":"xgrammar"}',
            "0.33.0",
            "0.10.2",
            "--guided-decoding-backend xgrammar",
        ),
        ("--cudagraph-capture-sizes 1 2", "0.33.0", "0.11.0", "--cuda-graph-sizes 1 2"),
        (
            "--enable-mamba-fine-grained-prefix-cache",
            "0.30.0",
            "0.31.0",
            "--enable-mamba-shared-prefix-checkpoint",
        ),
        ("--max-num-partial-prefills 1", "0.20.0", "0.33.0", ""),
        ("--no-enable-hc-sp", "0.33.0", "0.31.0", ""),
    ],
)
def test_a_flag_takes_its_name_and_place_in_the_new_release(
    flags: str, old: str, new: str, after: str
) -> None:
    line, _, migration = _migrate(f"vllm serve m/m {flags}", old, new)

    assert line == f"vllm serve m/m {after}".strip()
    assert migration.refused == ()
    assert migration.differences


@pytest.mark.parametrize(
    ("flags", "old", "new"),
    [
        ("--calculate-kv-scales", "0.11.0", "0.33.0"),
        ("--lora-extra-vocab-size 512", "0.11.0", "0.33.0"),
        ("--max-num-partial-prefills 4", "0.20.0", "0.33.0"),
        ("--task draft", "0.11.0", "0.33.0"),
        ("--max-num-active-seqs 8", "0.33.0", "0.30.0"),
        ("--kv-cache-dtype nvfp4", "0.33.0", "0.19.0"),
        ('--attention-config {"indexer_kv_dtype":"bf16"}', "0.33.0", "0.16.0"),
    ],
)
def test_what_cannot_be_migrated_is_refused_with_the_line_and_what_to_do(
    flags: str, old: str, new: str
) -> None:
    _, _, migration = _migrate(f"vllm serve m/m {flags}", old, new)

    assert [row.before for row in migration.refused] == [flags]
    assert migration.refused[0].after == ""
    assert flags.split(maxsplit=1)[0] in migration.refused[0].finding.why
    assert migration.refused[0].finding.expects


def test_a_variable_that_the_release_ignores_is_removed_or_becomes_a_flag_and_back() -> None:
    line, env, migration = _migrate(
        "vllm serve m/m",
        "0.11.0",
        "0.33.0",
        VLLM_USE_V1="1",
        VLLM_ATTENTION_BACKEND="FLASH_ATTN",
        HF_HOME="/models",
        VLLM_LOGGING_LEVEL="INFO",
    )

    assert line == "vllm serve m/m --attention-backend FLASH_ATTN"
    assert env == {"HF_HOME": "/models", "VLLM_LOGGING_LEVEL": "INFO"}
    assert [row.kind for row in migration.differences if row.kind != "default"] == ["variable"] * 2
    assert _migrate(line, "0.33.0", "0.11.0", **env)[:2] == (
        "vllm serve m/m",
        {**env, "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"},
    )


def test_no_variable_that_the_new_release_ignores_is_left() -> None:
    variables = read_history().variables
    for old, new in sampled(PAIRS, 29):
        env = {name: "1" for name in variables if has_variable(name, old)}

        left = migrate_flags(["vllm", "serve", "m/m"], env, old=old, new=new)[1]

        assert all(has_variable(name, new) for name in left), f"{old} to {new}"


def _defaults(migration: Migration) -> dict[str, tuple[str, str]]:
    rows = (row for row in migration.differences if row.kind == "default")
    return {row.before.split()[0]: (row.before.partition(" ")[2], row.after) for row in rows}


def _default_rows(flags: str, old: str, new: str, card: GpuModel | None = None) -> dict[str, tuple[str, str]]:
    return _defaults(
        migrate_flags(["vllm", "serve", "m/m", *flags.split()], {}, old=old, new=new, card=card)[2]
    )


def test_a_changed_default_of_a_flag_that_is_not_given_is_shown_with_both_values() -> None:
    shown = _default_rows("", "0.19.0", "0.20.0")

    assert shown["gpu_memory_utilization"] == ("0.9", "0.92")
    assert "gpu_memory_utilization" not in _default_rows("--gpu-memory-utilization 0.9", "0.19.0", "0.20.0")
    assert _default_rows("", "0.13.0", "0.14.0")["async_scheduling"][0] == "false"
    assert _default_rows("", "0.17.0", "0.18.0")["disable_cascade_attn"] == ("false", "true")


def test_a_class_of_the_old_release_is_not_to_be_kept() -> None:
    migration = migrate_flags(["vllm", "serve", "m/m"], {}, old="0.11.0", new="0.33.0", card=None)[2]

    (row,) = [row for row in migration.differences if row.before.startswith("scheduler_cls ")]
    assert (row.before, row.finding.expects) == ("scheduler_cls vllm.core.scheduler.Scheduler", "")


def test_a_default_that_depends_on_the_gpu_is_that_of_the_gpu() -> None:
    assert _default_rows("", "0.27.0", "0.28.0", find_gpu("B200"))["max_num_batched_tokens"] == (
        "8192",
        "16384",
    )
    assert "max_num_batched_tokens" not in _default_rows("", "0.27.0", "0.28.0", find_gpu("L4"))


def test_regressions_of_the_new_release_are_shown_for_the_model_and_the_gpu_they_concern() -> None:
    line = ["vllm", "serve", "Qwen/Qwen3.6-35B-A3B-FP8"]

    def issues(old: str, new: str) -> list[str]:
        migration = migrate_flags(line, {}, old=old, new=new, card=find_gpu("H100"))[2]
        return [row.finding.why for row in migration.differences if row.kind == "regression"]

    assert any("vllm#51663" in why for why in issues("0.23.0", "0.25.0"))
    assert issues("0.25.0", "0.26.0") == []  # it has the regression already
    assert issues("0.23.0", "0.33.0") == []


def test_a_model_that_the_older_entry_point_does_not_read_gets_its_flag() -> None:
    argv = ["python3", "-m", "vllm.entrypoints.openai.api_server", "m/m"]

    line, _, migration = migrate_flags(argv, {}, old="0.33.0", new="0.11.0")

    assert line[-2:] == ["--model", "m/m"]
    assert migration.differences[0].kind == "entry point"


@pytest.mark.parametrize(("old", "new"), [("", "0.33.0"), ("0.32.0", "0.99.0"), ("0.5.0", "0.33.0")])
def test_a_release_outside_of_the_table_is_refused(old: str, new: str) -> None:
    with pytest.raises(FlagError, match=r"the flags of 0\.8\.5 to 0\.\d+ are known"):
        _migrate("vllm serve m/m", old, new)


def test_every_removed_flag_of_the_table_has_a_replacement_or_is_refused_or_needless() -> None:
    newest = RELEASES[-1]
    for flag, replaced in RENAMED.items():
        if not read_history().flags.get(flag):
            continue
        old = next(release for release in reversed(RELEASES) if has_flag(flag, release))
        words = ["--" + flag.replace("_", "-"), *([] if is_switch(flag) else ["7"])]

        migration = migrate_flags(["vllm", "serve", "m/m", *words], {}, old=old, new=newest)[2]

        row = next(row for row in migration.differences if row.kind == "flag")
        replacing = replaced.carries or replaced.to or replaced.needless
        assert row.refused is not bool(replacing), flag
