"""The trials of a run, in a file of JSON lines from which a later run continues."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.performance_model.outcome import Goals
from flettner.performance_model.trace import Trace, write_trace
from flettner.primitives.quantiles import mean
from flettner.tools.tuning.searches import Point, Tried

FORMAT, VERSION = "flettner_tune", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTrial:
    """`good`: "1" for each request of the load within the objectives, else "0"; empty: nothing was measured.

    `round` above 0: a repetition, to confirm.
    """

    point: Mapping[str, Any]
    changes: Mapping[str, Any]
    round: int = 0
    why: str = ""  # the server did not start, or did not answer
    predicted: float | None = None  # share of the requests within the objectives
    measured: Mapping[str, float] = field(default_factory=dict)
    good: str = ""
    log: str = ""  # file beside the trials, which a later run may find at another path
    seconds: float = 0.0  # start, warm-up, load and stop

    @property
    def goodput(self) -> float | None:
        return self.good.count("1") / len(self.good) if self.good else None

    @property
    def is_base(self) -> bool:
        return not self.changes


class TrialFile:
    """The file. Raises ConfigError if another command, load or objective wrote it."""

    def __init__(self, path: Path, command: Sequence[str], trace: Trace, goals: Goals) -> None:
        self._path = path
        load = hashlib.sha256("".join(write_trace(trace)).encode()).hexdigest()
        head = {FORMAT: VERSION, "command": list(command), "load": load, "objectives": asdict(goals)}
        self.trials: list[TuningTrial] = []
        if not path.exists():
            self._append(head)
            return
        first, *lines = path.read_text("utf-8").splitlines() or [""]
        try:
            if json.loads(first) != head:
                raise ConfigError(
                    f"--out {path.parent}: holds a run of another command, load or objective; give another "
                    "folder"
                )
            self.trials = [TuningTrial(**json.loads(line)) for line in _whole(lines)]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}: is no file of trials: {error}") from error

    def add(self, trial: TuningTrial) -> None:
        self._append(asdict(trial))
        self.trials.append(trial)

    def tried(self) -> list[Tried]:
        """Return the result of each point, over all its rounds."""
        points: list[Point] = []
        for trial in self.trials:
            if trial.point not in points:
                points.append(trial.point)
        return [Tried(point=point, goodput=mean_goodput(self.of(point))) for point in points]

    def of(self, point: Point) -> list[TuningTrial]:
        return [trial for trial in self.trials if trial.point == point]

    def _append(self, row: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def mean_goodput(trials: Sequence[TuningTrial]) -> float | None:
    return mean(trial.goodput for trial in trials if trial.goodput is not None)


def _whole(lines: Sequence[str]) -> Sequence[str]:
    """Return the text without a last line that a kill of the run cut off."""
    try:
        json.loads(lines[-1] if lines else "{}")
    except ValueError:
        return lines[:-1]
    return lines
