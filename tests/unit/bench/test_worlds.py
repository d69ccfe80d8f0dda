"""World files: what is read, and the errors that name a key."""

from pathlib import Path

import pytest

from bench.loop.clients import Clients
from bench.loop.world import OWN, World, WorldError, parse_world, read
from flettner.simulator.flags import parse
from flettner.vllm_facts.models.lookup import find_model

SHARED_CARD = OWN.with_name("shared_card.toml")
SMALL: dict[str, object] = {
    "flags": ["--max-num-seqs", "4"],
    "hardware": "4090-8b",
    "prompt": [200, 0.6, 20, 1500],
    "output": 30,
    "slo": {"ttft": ["500ms", 0.95]},
    "load": [[60, 5, 1.0], [60, 2, 5.0]],
    "right": {"max_num_seqs": "up"},
}


def world(**changes: object) -> World:
    return parse_world("small", SMALL | changes)


def test_there_are_worlds_for_the_goals() -> None:
    worlds = read(OWN)

    assert len(worlds) == 58
    assert sum(world.real for world in worlds) == 6
    assert {world.right is None for world in worlds} == {True, False}


def test_the_worlds_of_a_shared_card_promise_little_more_than_the_gap_of_a_lone_server() -> None:
    worlds = read(SHARED_CARD)

    assert len(worlds) == 12
    assert all(world.shared_card is not None and world.slo.itl and world.right for world in worlds)
    assert not any(world.shared_card for world in read(OWN))


def test_the_worlds_of_layouts_have_a_model_of_known_size_on_four_gpus() -> None:
    worlds = read(OWN.with_name("layouts.toml"))

    assert sum(world.right is None for world in worlds) == 3
    for world in worlds:
        flags = parse(world.command[2:])
        model = find_model(flags.model)
        assert model is not None
        assert model.parameters is not None
        assert flags.tensor_parallel_size * flags.data_parallel_size == 4
        assert (world.gpus or 0) >= 4


def test_the_worlds_of_speculation_draft_tokens() -> None:
    worlds = read(OWN.with_name("speculation.toml"))

    assert [world.right for world in worlds] == [
        {"speculative_config": "down"},
        {"speculative_config": "down"},
        {"speculative_config": "down"},
        {"speculative_config": "up"},
        None,
    ]
    assert all(parse(world.command[2:]).speculative_config for world in worlds)


def test_a_world_has_the_defaults_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "worlds.toml"
    file.write_text(
        """
        [defaults]
        prompt = 100
        output = 30
        slo = {ttft = ["500ms", 0.95]}
        [first]
        load = [[60, 5, 1.0]]
        [second]
        output = 20
        load = [[60, 2, 1.0]]
        """
    )

    assert [(made.name, made.mixes[0].output.middle, made.load[0].rate) for made in read(file)] == [
        ("first", 30, 5.0),
        ("second", 20, 2.0),
    ]


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("falgs", [], "falgs: is no key"),
        ("flags", ["--max-num-seqs"], "flags: the simulator does not know"),
        ("flags", ["--max-num-seqs", "0"], "flags: the simulator refuses"),
        ("hardware", "toaster", "hardware: the simulator does not know"),
        ("prompt", [1, 2], "prompt: must be a number of tokens or"),
        ("output", 0, "output: must be a number of tokens or"),
        ("slo", {"tpot": ["1s", 0.9]}, "slo.tpot.*'ttft', 'itl' or 'e2e'"),
        ("slo", {"ttft": ["soon", 0.9]}, "slo.ttft: .*soon"),
        ("load", [[60, 5]], r"load.0: must have rows of \[seconds, requests/s, cv\]"),
        ("load", [[0, 5, 1]], "load.0: seconds and requests/s must be positive"),
        ("right", {"max_num_seqs": 8}, "right.max_num_seqs: must be one of up, down, on, off"),
        ("right", {}, "right: .*at least 1 item"),
        ("mode", "advise", "mode: .*'approve' or 'auto'"),
        ("think_s", "20", "think_s: .*a valid number"),
        ("truth", {"colour_times": 2}, "truth: 'colour_times' = 2 is unknown"),
        ("truth", {"token_us_times": -1}, "(?s)truth: the simulator refuses .* positive"),
        ("truth", {"hiccups": [0, 1]}, "truth: the simulator refuses"),
        ("changes", [{"at": 9, "prompt": 5}, {"at": 3, "output": 5}], "changes: the times"),
        ("changes", [{"at": 9, "rate": 5}], "changes.0.rate: is no key"),
        ("seeds", 2.5, "seeds: .*a valid integer"),
        ("real", 1, "real: .*a valid boolean"),
    ],
)
def test_an_error_names_the_key(key: str, value: object, names: str) -> None:
    with pytest.raises(WorldError, match=names):
        world(**{key: value})


@pytest.mark.parametrize("key", ["prompt", "output", "slo", "load"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(WorldError, match=f"{key}: is missing"):
        parse_world("small", {name: value for name, value in SMALL.items() if name != key})


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("{")

    with pytest.raises(WorldError, match=r"broken\.toml: cannot be read as TOML"):
        read(tmp_path / "broken.toml")


def test_the_truth_becomes_flags_of_the_simulator() -> None:
    truth = {"jitter": 0.06, "hiccups": [30, 0.05], "token_us_times": 1.5, "attention_times": 4}

    plain, perturbed = (parse(made.command[2:]).simulation for made in (world(), world(truth=truth)))

    assert (perturbed.jitter, perturbed.hiccups) == (0.06, (30.0, 0.05))
    assert perturbed.hardware.token_us == 1.5 * plain.hardware.token_us
    assert perturbed.hardware.kv_read_us == 4 * plain.hardware.kv_read_us


def test_what_is_right_does_not_change_the_key_of_the_sweep_but_the_load_does() -> None:
    assert world().key == world(right=None, mode="auto", seeds=3).key
    assert world().key != world(load=[[60, 5, 1.0]]).key


def test_the_requests_of_a_seed_are_the_same_and_follow_load_and_mix() -> None:
    mixed = world(
        load=[[1000, 5, 1.0], [1000, 1, 5.0]], changes=[{"at": 500, "prompt": 700}], shared_prefix=64
    )

    def sent(seed: int) -> list[tuple[float, int, int, float]]:
        coming = Clients(mixed, seed).until(mixed.seconds)
        return [(c.request.arrived_at, c.request.prompt, c.request.wanted, c.place) for c in coming]

    first = sent(1)

    assert first == sent(1)
    assert first != sent(2)
    assert sum(at < 1000 for at, *_ in first) == pytest.approx(5000, rel=0.06)
    assert sum(at >= 1000 for at, *_ in first) == pytest.approx(1000, rel=0.4)
    assert {prompt for at, prompt, *_ in first if at >= 500} == {764}
    assert all(wanted == 30 and 0 <= place <= 100 for *_, wanted, place in first)


def test_prompts_share_the_blocks_of_their_prefix_only() -> None:
    coming = list(Clients(world(shared_prefix=64), 1).until(120.0))

    first, other = (set(c.request.hashes) for c in coming[:2])

    assert len(first & other) == 64 // 16
