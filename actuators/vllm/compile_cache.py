"""Whether a start will find its compiled graphs, and what else vLLM makes of a candidate's flags."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from actuators.docker.spec import ContainerSpec
from actuators.vllm.dry_run import DryRunOutput, DryRunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """`warm`: nothing has to be compiled. None: not known."""

    warm: bool | None
    notes: tuple[str, ...]  # for who decides


def predict_cache_state(blue: ContainerSpec, checked: DryRunResult) -> CacheState:
    """Of one like `blue`; `checked` has answered for the command that runs, then for the candidate."""
    if checked.why:
        return CacheState(warm=None, notes=(f"the flags are tried by the start itself: {checked.why}",))
    now, then = checked.answers
    if not then.ok:
        why = f"vLLM {checked.version} cannot judge this model without a network or weights: {then.error}"
        return CacheState(warm=None, notes=(f"the flags are tried by the start itself: {why}",))
    takes = f"vLLM {checked.version} takes these flags{_changes(now, then)}"
    warm, why = _warm(blue, checked.cache, now, then)
    return CacheState(warm=warm, notes=(takes, why))


def _warm(blue: ContainerSpec, cache: str, now: DryRunOutput, then: DryRunOutput) -> tuple[bool | None, str]:
    if not then.compiles:
        return True, "nothing is compiled with these flags: every start is a warm one"
    if not then.hash:
        return None, "this vLLM does not tell whether it has to compile anew"
    if not _kept(blue, cache):
        fix = f"mount a volume on {cache} to make starts warm" if cache else "its folder is not known"
        return False, f"it compiles anew: compiled graphs are not kept beyond a container; {fix}"
    if not now.ok or now.hash != then.hash:
        return False, "it compiles anew: these flags are part of what the compiled graphs depend on"
    return True, f"compiled graphs are found in {cache}, which old and new servers share"


def _kept(blue: ContainerSpec, cache: str) -> bool:
    """Whether that folder lies on something that all like containers have mounted, and may write to."""
    targets = [one.destination for one in blue.mounts if one.writable]
    return bool(cache) and any(PurePosixPath(cache).is_relative_to(target) for target in targets)


def _changes(now: DryRunOutput, then: DryRunOutput) -> str:
    """What differs in the resolved configuration, defaults that follow other flags included."""
    if not now.ok:
        return ""
    names = [name for name in then.resolved if now.resolved.get(name) != then.resolved[name]]
    told = [f"{name} {now.resolved.get(name)} → {then.resolved[name]}" for name in names]
    return f"; resolved by it: {', '.join(told)}" if told else ""
