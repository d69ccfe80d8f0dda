import json
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.vllm.start_times import StartTimes

KEY = "sha256:ab tiny"


@pytest.fixture
def times(tmp_path: Path) -> StartTimes:
    return StartTimes.at(tmp_path / "chat")


def test_nothing_is_expected_before_the_first_start(times: StartTimes) -> None:
    assert times.expected(KEY, warm=None) is None
    assert times.expected_part(KEY, "stop") is None
    assert times.learned(KEY, warm=None) is None
    assert times.deadline(KEY, 600.0) == 600.0


def test_the_median_of_the_last_five_starts_is_expected(times: StartTimes) -> None:
    for seconds in (900.0, 900.0, 900.0, 50.0, 40.0, 60.0, 45.0, 200.0):
        times.record(KEY, seconds, warm=True)

    assert times.expected(KEY, warm=True) == 50.0


def test_keeps_warm_starts_cold_starts_and_stops_apart(times: StartTimes) -> None:
    times.record(KEY, 30.0, warm=True)
    times.record(KEY, 300.0, warm=False)
    times.record(KEY, 40.0, warm=None)
    times.record_part(KEY, "stop", 4.0)

    assert times.expected(KEY, warm=True) == 30.0
    assert times.expected(KEY, warm=False) == 300.0
    assert times.expected(KEY, warm=None) == 40.0
    assert times.expected_part(KEY, "stop") == 4.0


def test_a_start_has_failed_after_three_times_the_slowest_one(times: StartTimes) -> None:
    times.record(KEY, 100.0, warm=True)
    times.record(KEY, 50.0, warm=True)

    assert times.learned(KEY, warm=True) == 300.0
    assert times.deadline(KEY, 600.0, warm=True) == 300.0


def test_no_deadline_is_below_a_minute(times: StartTimes) -> None:
    times.record(KEY, 0.9, warm=True)

    assert times.learned(KEY, warm=True) == 60.0


def test_a_cold_start_is_not_measured_by_warm_ones(times: StartTimes) -> None:
    times.record(KEY, 50.0, warm=True)

    assert times.learned(KEY, warm=False) is None
    assert times.deadline(KEY, 600.0, warm=False) == 600.0


def test_keeps_images_and_models_apart(times: StartTimes) -> None:
    times.record(KEY, 50.0, warm=True)

    assert times.expected("sha256:ab large", warm=True) is None


def test_returns_the_prediction_for_a_setting(times: StartTimes) -> None:
    times.foresee(KEY, {"max_num_seqs": 16, "model": "tiny"}, warm=False)
    times.foresee(KEY, {"max_num_seqs": 32, "model": "tiny"}, warm=True)

    assert times.foreseen(KEY, {"model": "tiny", "max_num_seqs": 16}) is False
    assert times.foreseen(KEY, {"model": "tiny", "max_num_seqs": 32}) is True
    assert times.foreseen(KEY, {"model": "tiny"}) is None


def test_another_process_reads_what_one_has_learned(times: StartTimes) -> None:
    times.record(KEY, 50.0, warm=True)
    times.foresee(KEY, {"max_num_seqs": 16}, warm=True)

    again = StartTimes(times.path)

    assert again.expected(KEY, warm=True) == 50.0
    assert again.foreseen(KEY, {"max_num_seqs": 16}) is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"seconds": 3}',
        '{"seconds": {"sha256:ab tiny": {"warm": ["x", null, NaN, -1]}}}',
        '{"seconds": {"sha256:ab tiny": {"warm": [1e300, 1' + "0" * 400 + "]}}}",
        '{"seconds": ' + "[" * 100_000,
    ],
)
def test_an_unreadable_file_is_ignored(times: StartTimes, text: str) -> None:
    times.path.parent.mkdir()
    times.path.write_text(text)
    expected_s = times.expected(KEY, warm=True)

    times.record(KEY, 50.0, warm=True)

    assert expected_s is None
    assert times.expected(KEY, warm=True) == 50.0


def test_a_folder_that_cannot_be_written_does_not_fail_a_start(tmp_path: Path) -> None:
    (tmp_path / "chat").write_text("a file where the folder should be")

    StartTimes.at(tmp_path / "chat").record(KEY, 50.0, warm=True)


@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none()
        | st.booleans()
        | st.sampled_from([10**400, -1, 1e300, 50.0])
        | st.floats()
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["seconds", "foreseen", KEY, "warm", "stop"]), inner, max_size=3
            )
        ),
        max_leaves=10,
    ).map(lambda body: json.dumps(body).encode())
)
def test_any_file_content_gives_a_deadline_and_takes_a_start(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        times = StartTimes(Path(folder) / "start_times.json")
        times.path.write_bytes(content)

        assert 0 <= (times.expected(KEY, warm=None) or 0.0) < inf
        assert 600.0 <= times.deadline(KEY, 600.0) < inf
        assert times.foreseen(KEY, {"max_num_seqs": 8}) in {True, False, None}
        times.foresee(KEY, {"max_num_seqs": 8}, warm=True)
        times.record_part(KEY, "stop", 4.0)

        assert times.foreseen(KEY, {"max_num_seqs": 8})
        assert (times.expected_part(KEY, "stop") or 0.0) > 0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_an_impossible_time_is_not_learned(times: StartTimes, seconds: float) -> None:
    times.record(KEY, seconds, warm=True)

    assert times.expected(KEY, warm=True) is None


def test_the_file_has_a_maximum_size(times: StartTimes) -> None:
    for number in range(60):
        times.record(f"sha256:{number} tiny", 1.0, warm=True)
        times.foresee(KEY, {"max_num_seqs": number}, warm=True)

    assert times.expected("sha256:0 tiny", warm=True) is None
    assert times.expected("sha256:59 tiny", warm=True) == 1.0
    assert times.foreseen(KEY, {"max_num_seqs": 0}) is None
