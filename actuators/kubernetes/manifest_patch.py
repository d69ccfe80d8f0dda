"""A change as a patch that a person can commit where the manifest is kept.

It is a JSON patch (RFC 6902) in YAML: `patches` of a kustomization and `kubectl patch --type=json` take it.
Each changed line is tested before it is replaced, so that the patch fails on another manifest. Only changed
lines are in it: the others may hold a secret.
"""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

import yaml

from flettner.actuators.kubernetes.upgrade import change_container
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.clients.kubernetes.documents import Json
from flettner.vllm_facts.values import Setting, Value


def make_patch(workload: Workload, setting: Setting, start: Setting = AS_IT_IS) -> str:
    """Return the patch; empty if nothing changes, or a changed line holds a secret. Raises FlagError."""
    container = workload.container_document
    path = f"/spec/template/spec/containers/{workload.container}"
    changes = [
        change
        for name, wanted in change_container(workload, setting, start).items()
        for change in _changes(f"{path}/{name}", container.get(name), wanted)
    ]
    if not changes or any(secret in str(change) for change in changes for secret in workload.serve.secrets):
        return ""
    written = yaml.safe_dump(changes, sort_keys=False, allow_unicode=True, width=1000)
    return f"{_describe(workload, setting, start)}{written}"


def _describe(workload: Workload, setting: Setting, start: Setting) -> str:
    """Return the comments above the patch: the change, and which lines of a `--config` file it overrides."""
    before = workload.serve.setting
    changed = [
        knob for knob in sorted(before.keys() | setting.keys()) if before.get(knob) != setting.get(knob)
    ]
    what = ", ".join(
        [
            *(f"{name} -> {'unset' if value is None else value}" for name, value in start.items()),
            *(f"{knob} {_word(before, knob)} -> {_word(setting, knob)}" for knob in changed),
        ]
    )
    where = f"{workload.resource.__name__} {workload.name}, container {workload.container_document['name']}"
    text = f"# {where}: {what}\n"
    if workload.controller:
        text += f"# {workload.controller} writes it: make the change there, where the paths may differ\n"
    if in_file := [knob for knob in changed if knob in workload.serve.file_setting]:
        text += f"# {', '.join(in_file)}: vLLM takes the flag, not the value in its --config file\n"
    return text


def _word(setting: Mapping[str, Value], knob: str) -> str:
    return str(setting[knob]) if knob in setting else "unset"


def _changes(path: str, before: object, after: object) -> list[Json]:
    """Return the operations that make the value of one field of the other: a list, or the image."""
    if isinstance(after, list):
        return _list_changes(path, before if isinstance(before, list) else [], after)
    return [{"op": "test", "path": path, "value": before}, {"op": "replace", "path": path, "value": after}]


def _list_changes(path: str, before: Sequence[object], after: Sequence[object]) -> list[Json]:
    """Return the operations that make one list of the other, the last lines first: indices stay valid."""
    if not before:
        return [{"op": "add", "path": path, "value": list(after)}] if after else []
    keys = [repr(item) for item in before], [repr(item) for item in after]
    operations: list[Json] = []
    for _, low, high, start, end in reversed(_blocks(*keys)):
        common = min(high - low, end - start)
        for at in reversed(range(low + common, high)):
            operations += [_test(path, at, before[at]), {"op": "remove", "path": f"{path}/{at}"}]
        operations += [
            {"op": "add", "path": f"{path}/{low + common}", "value": value}
            for value in reversed(after[start + common : end])
        ]
        for offset in reversed(range(common)):
            at = low + offset
            new = after[start + offset]
            operations += [
                _test(path, at, before[at]),
                {"op": "replace", "path": f"{path}/{at}", "value": new},
            ]
    return operations


def _blocks(before: list[str], after: list[str]) -> list[tuple[str, int, int, int, int]]:
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return [block for block in matcher.get_opcodes() if block[0] != "equal"]


def _test(path: str, at: int, value: object) -> Json:
    return {"op": "test", "path": f"{path}/{at}", "value": value}
