"""The end of a step: noise, hiccups and scaled coefficients."""

import pytest

from flettner.simulator.flags import InvalidFlagError, parse
from flettner.simulator.hardware import PRESETS, SCALED, scaled
from flettner.simulator.pace import Pace
from flettner.simulator.step_time import StepParts, StepWork
from flettner.simulator.text import draws

STEP = StepWork(tokens=1, sequences=1)


def pace(**options: object) -> Pace:
    return Pace(lambda _: StepParts(0.1), draws(1), **options)  # type: ignore[arg-type]


def test_without_options_a_step_takes_the_computed_time() -> None:
    assert pace().ends_s(STEP, 5.0, since_s=0.0) == pytest.approx(5.1)


def test_hiccups_come_as_often_and_last_as_long_as_asked() -> None:
    paced, at_s, extra_s = pace(hiccups=(10.0, 0.5)), 0.0, 0.0
    for _ in range(100_000):
        ends_s = paced.ends_s(STEP, at_s, since_s=0.0)
        extra_s += ends_s - at_s - 0.1
        at_s = ends_s

    assert extra_s / 0.5 == pytest.approx(at_s / 10.5, rel=0.1)


def test_a_hiccup_while_idle_delays_no_later_step() -> None:
    paced = pace(hiccups=(10.0, 0.5))
    paced.ends_s(STEP, 0.0, since_s=0.0)

    far = [paced.ends_s(STEP, at_s, since_s=0.0) - at_s for at_s in (1e6, 2e6, 3e6)]

    assert max(far) < 0.1 + 2 * 0.5


def test_noise_of_the_steps_does_not_move_the_hiccups() -> None:
    assert pace(hiccups=(1e9, 0.5)).ends_s(STEP, 0.0, since_s=0.0) == pytest.approx(0.1)


@pytest.mark.parametrize("name", sorted(SCALED))
def test_a_factor_multiplies_its_coefficients_only(name: str) -> None:
    gpu = PRESETS["4090-8b"]
    slower = scaled(gpu, {name: 2.0})

    changed = {field for field in gpu.__dataclass_fields__ if getattr(gpu, field) != getattr(slower, field)}

    assert changed == {field for field in SCALED[name] if getattr(gpu, field)}
    assert all(getattr(slower, field) == 2 * getattr(gpu, field) for field in changed)


def test_the_flags_give_factors_and_hiccups() -> None:
    simulation = parse(["--sim-times", "token_us=1.5,attention=4", "--sim-hiccups", "60:0.05"]).simulation

    assert simulation.hardware.token_us == 1.5 * PRESETS["t4-8b-awq"].token_us
    assert simulation.hiccups == (60.0, 0.05)


@pytest.mark.parametrize(
    ("flag", "text", "names"),
    [
        ("--sim-times", "speed=2", "host_step_us"),
        ("--sim-times", "token_us=0", "positive"),
        ("--sim-times", "token_us", "NAME=FACTOR"),
        ("--sim-hiccups", "60", "60:0.05"),
        ("--sim-hiccups", "0:1", "positive"),
    ],
)
def test_a_wrong_value_is_refused_with_the_form(flag: str, text: str, names: str) -> None:
    with pytest.raises(InvalidFlagError, match=names):
        parse([flag, text])
