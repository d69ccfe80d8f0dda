"""Findings for continuous integration: SARIF 2.1.0, and annotations of GitHub Actions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flettner.rules.table import name_of, slug_of
from flettner.vllm_facts.serve_config import Finding

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A finding and its place; `file` is "" for a command line. `name`: of the server in the file."""

    finding: Finding
    change: str
    file: str = ""
    line: int = 1
    name: str = ""

    @property
    def message(self) -> str:
        advice = f"change: {self.change}" if self.change else self.finding.expects
        text = "; ".join(part.rstrip(".") for part in (self.finding.why, advice) if part)
        return f"{self.name}: {text}" if self.name else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that could not be judged or read."""

    text: str
    file: str = ""
    line: int = 1
    is_error: bool = False


def as_sarif(located: Sequence[Located], remarks: Sequence[Remark], version: str) -> str:
    rules = sorted({place.finding.rule for place in located})
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "flettner",
                "version": version,
                "rules": [
                    {"id": rule, "name": slug_of(rule), "shortDescription": {"text": f"Rule {name_of(rule)}"}}
                    for rule in rules
                ],
            }
        },
        "invocations": [
            {
                "executionSuccessful": not any(remark.is_error for remark in remarks),
                "toolExecutionNotifications": [_notification(remark) for remark in remarks],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": [_result(place, rules.index(place.finding.rule)) for place in located],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _notification(remark: Remark) -> dict[str, Any]:
    return {
        "level": "error" if remark.is_error else "note",
        "message": {"text": remark.text},
        **_places(remark.file, remark.line),
    }


def _result(located: Located, index: int) -> dict[str, Any]:
    return {
        "ruleId": located.finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[located.finding.severity],
        "message": {"text": located.message},
        **_places(located.file, located.line),
        "properties": {"class": located.finding.klass, "source": located.finding.source},
    }


def _places(file: str, line: int) -> dict[str, Any]:
    if not file:
        return {}
    uri = Path(file).as_uri() if Path(file).is_absolute() else quote(file)
    place = {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}
    return {"locations": [{"physicalLocation": place}]}


def as_github(located: Sequence[Located], remarks: Sequence[Remark]) -> str:
    """Return workflow commands: https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""
    lines = [
        _command(
            _COMMANDS[place.finding.severity],
            place.file,
            place.line,
            f"flettner {name_of(place.finding.rule)}",
            place.message,
        )
        for place in located
    ]
    lines += [
        _command("error" if remark.is_error else "notice", remark.file, remark.line, "flettner", remark.text)
        for remark in remarks
    ]
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, file: str, line: int, title: str, message: str) -> str:
    place = {"file": file, "line": str(line)} if file else {}
    properties = ",".join(f"{name}={_escape(text, ':,')}" for name, text in {**place, "title": title}.items())
    return f"::{level} {properties}::{_escape(message)}"


def _escape(text: str, more: str = "") -> str:
    for char in "%\r\n" + more:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
