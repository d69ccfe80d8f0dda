"""Predict whether a start finds its compiled graphs, and note what a dry run reports."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from flettner.actuators.docker.dry_run import DryRunOutput, DryRunResult
from flettner.actuators.docker.spec import ContainerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """`warm`: nothing has to be compiled. None: not known."""

    warm: bool | None
    notes: tuple[str, ...]  # for the operator who approves


def predict_cache_state(blue: ContainerSpec, checked: DryRunResult) -> CacheState:
    """For a container like `blue`. `checked`: results for the running command, then for the candidate."""
    if checked.why:
        return CacheState(warm=None, notes=(f"only the start itself tests the flags: {checked.why}",))
    now, then = checked.answers
    if not then.ok:
        why = f"vLLM {checked.version} cannot judge this model without a network or weights: {then.error}"
        return CacheState(warm=None, notes=(f"only the start itself tests the flags: {why}",))
    takes = f"vLLM {checked.version} accepts these flags{_changes(now, then)}"
    warm, why = _warm(blue, checked.cache, now, then)
    return CacheState(warm=warm, notes=(takes, why))


def _warm(blue: ContainerSpec, cache: str, now: DryRunOutput, then: DryRunOutput) -> tuple[bool | None, str]:
    if not then.compiles:
        return True, "nothing is compiled with these flags: every start is a warm one"
    if not then.hash:
        return None, "this vLLM does not report whether it has to compile"
    if not _kept(blue, cache):
        fix = f"mount a volume on {cache} to make starts warm" if cache else "its folder is not known"
        return False, f"it compiles again: compiled graphs are not kept when a container is removed; {fix}"
    if not now.ok or now.hash != then.hash:
        return False, "it compiles again: the compiled graphs depend on these flags"
    return True, f"compiled graphs are found in {cache}, which old and new servers share"


def _kept(blue: ContainerSpec, cache: str) -> bool:
    """Whether the folder lies in a writable mount, which all like containers share."""
    targets = [one.destination for one in blue.mounts if one.writable]
    return bool(cache) and any(PurePosixPath(cache).is_relative_to(target) for target in targets)


def _changes(now: DryRunOutput, then: DryRunOutput) -> str:
    """Return the differences in the resolved configuration, with defaults that follow other flags."""
    if not now.ok:
        return ""
    names = [name for name in then.resolved if now.resolved.get(name) != then.resolved[name]]
    changed = [f"{name} {now.resolved.get(name)} → {then.resolved[name]}" for name in names]
    return f"; resolved by it: {', '.join(changed)}" if changed else ""
