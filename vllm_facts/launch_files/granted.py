"""The CPUs and the time that a container of Kubernetes or compose is granted."""

import re

from flettner.vllm_facts.launch_files.yaml_nodes import Node, get, text_at
from flettner.vllm_facts.serve_config import Granted

_CPUS = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(m?)")
_PERIOD_S, _FAILURES, _ANSWER_S = 10.0, 3.0, 1.0  # of a probe, by default
_STARTUP, _LIVENESS, _READINESS = "startupProbe", "livenessProbe", "readinessProbe"


def granted_by_pod(container: Node) -> Granted | None:
    """By `resources` and the probes. A container without a request of its own has its limit kept free."""
    limit = _cpus(text_at(container, "resources", "limits", "cpu"))
    kept = _cpus(text_at(container, "resources", "requests", "cpu"))
    probe = next((name for name in (_STARTUP, _LIVENESS) if get(container, name) is not None), "")
    watch = next((name for name in (_LIVENESS, _READINESS) if get(container, name) is not None), "")
    granted = Granted(
        cpus=limit,
        cpus_kept=kept if kept is not None else limit,
        start_s=_patience(container, probe) if probe else None,
        startup_probe=probe == _STARTUP,
        answer_s=_seconds(text_at(container, watch, "timeoutSeconds"), _ANSWER_S) if watch else None,
        deaf_s=_patience(container, watch, delayed=False) if watch else None,
        restarts=watch == _LIVENESS,
    )
    return None if granted == Granted() else granted


def granted_by_service(service: Node) -> Granted | None:
    """By `cpus` or `deploy.resources`; a health check of compose restarts nothing."""
    limits = (("cpus",), ("deploy", "resources", "limits", "cpus"))
    given = [cpus for path in limits if (cpus := _cpus(text_at(service, *path))) is not None]
    return Granted(cpus=min(given), cpus_kept=min(given)) if given else None


def _cpus(text: str) -> float | None:
    """`2`, `1.5` or `500m`; 0 is no bound."""
    amount = _CPUS.fullmatch(text.strip())
    return float(amount[1]) / (1000 if amount[2] else 1) or None if amount else None


def _patience(container: Node, probe: str, *, delayed: bool = True) -> float | None:
    """The seconds from the container's start, or from its last answer, to what the probe does."""
    wait, period, failures = (
        _seconds(text_at(container, probe, name), default)
        for name, default in (
            ("initialDelaySeconds", 0.0),
            ("periodSeconds", _PERIOD_S),
            ("failureThreshold", _FAILURES),
        )
    )
    if wait is None or period is None or failures is None:
        return None
    return period * failures + (wait if delayed else 0.0)


def _seconds(text: str, default: float) -> float | None:
    """None for a variable of a template."""
    if not text:
        return default
    return float(text) if text.isdecimal() and len(text) < 9 else None  # noqa: PLR2004 - a number of digits
