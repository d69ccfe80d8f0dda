"""Optuna's TPE over the points of a space; needs the extra `tune`."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.tools.tuning.searches import Point, Tried, scales_of, untried

_STARTUP = 5  # random trials before the estimator is used, the first is the setting in force
_ASKS = 64  # attempts to get a point of the space that was not tried


@dataclass(frozen=True, slots=True)
class TpeSearch:
    """Each proposal rebuilds the study from the trials: a resumed run proposes the same points."""

    space: Sequence[Point]
    seed: int = 0

    def propose(self, tried: Sequence[Tried]) -> Point | None:
        left = untried(self.space, tried)
        if not left or not tried:
            return left[0] if left else None
        optuna, scales = import_optuna(), scales_of(self.space)
        study = self._study(optuna, tried)
        for _ in range(_ASKS):
            trial = study.ask()
            point = {
                knob: scale[trial.suggest_int(knob, 0, len(scale) - 1)] for knob, scale in scales.items()
            }
            if point in left:
                return point
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return left[0]

    def _study(self, optuna: ModuleType, tried: Sequence[Tried]) -> Any:  # noqa: ANN401 - optuna's Study
        scales = scales_of(self.space)
        sampler = optuna.samplers.TPESampler(n_startup_trials=_STARTUP, seed=self.seed + len(tried))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        ranges = {
            knob: optuna.distributions.IntDistribution(0, len(scale) - 1) for knob, scale in scales.items()
        }
        for earlier in tried:
            study.add_trial(
                optuna.trial.create_trial(
                    params={knob: scale.index(earlier.point[knob]) for knob, scale in scales.items()},
                    distributions=ranges,
                    value=earlier.goodput or 0.0,
                )
            )
        return study


def import_optuna() -> ModuleType:
    """Import Optuna. Raises ConfigError if the extra is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import optuna  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("--search tpe needs Optuna: pip install 'flettner[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    module: ModuleType = optuna
    return module
