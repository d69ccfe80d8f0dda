"""Predict the outage of a swap from its parts as they were measured here."""

from flettner.actuators.vllm.sleep import SleepVerdict
from flettner.actuators.vllm.start_times import StartTimes

_STOP_S = 10.0  # SIGTERM to a drained vLLM, until its GPU memory is free
_START_S = 300.0  # assumed if no start was measured


def predict_outage(
    times: StartTimes, key: str, name: str, verdict: SleepVerdict, start_s: float | None
) -> tuple[float, tuple[str, str]]:
    """Return seconds, and notes on the parts and on the way back of the server `name`.

    `key`: of `times`. `start_s`: the expected start of green.
    """
    off_s, off, back = _predict_stop(times, key, name, verdict)
    warm_s = times.expected_part(key, "warm_up") or 0.0
    outage_s = off_s + (start_s or _START_S) + warm_s
    assumed = "" if start_s else " (assumed)"
    parts = f"{off_s:.0f} s {off}, {start_s or _START_S:.0f} s to start{assumed}"
    parts += f", {warm_s:.0f} s to warm up" if warm_s else ""
    return outage_s, (f"the outage: {parts}", back)


def _predict_stop(times: StartTimes, key: str, name: str, verdict: SleepVerdict) -> tuple[float, str, str]:
    """Return the expected seconds until the slot is free, what for, and a note on the way back."""
    if not verdict.fits:
        back = f"{name} stops, and a rollback starts it again; it cannot sleep meanwhile: {verdict.why}"
        return times.expected_part(key, "stop") or _STOP_S, "to stop", back
    wake_s = times.expected_part(key, "wake")
    wakes = "seconds, by vLLM's documentation" if wake_s is None else f"about {wake_s:.0f} s, as measured"
    back = f"{name} sleeps meanwhile, and a rollback wakes it in {wakes}: {verdict.why}"
    return times.expected_part(key, "sleep") or _STOP_S, "until it sleeps", back
