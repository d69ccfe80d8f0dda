"""Watching something until Ctrl-C or `q`: a screen that is drawn anew, or a line for each change."""

import argparse
import json
import select
import sys
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from agent.api.client import ApiClient, Json, RefusedError, UnreachableError
from agent.cli.exits import OK
from agent.cli.remote_command import path, show
from agent.terminal.capabilities import has_screen
from agent.terminal.fullscreen import whole
from agent.terminal.tables import complain, safe

EVERY_S = 1.0


def looked(
    args: argparse.Namespace,
    daemon: ApiClient,
    kind: str,
    one: str | None,
    *,
    key: str,
    text: Callable[[list[Json]], str],
    line: Callable[[Json], str],
    chosen: Mapping[str, str] | None = None,
) -> int:
    """The `one` of a kind, or all that are `chosen`: once, or with --watch as they change.

    `text` is all of them for a screen, `line` is the one whose name is under `key`.
    """
    query = f"?{urlencode(chosen)}" if chosen else ""

    def look() -> Json:
        return daemon.get(f"/v1/{kind}{query}" if one is None else path(kind, one))

    def found(answer: Json) -> list[Json]:
        return list(answer[kind]) if one is None else [answer]

    if args.watch:
        tell = json.dumps if args.json else line
        return watched(
            lambda: text(found(look())),
            lambda: {each[key]: tell(each) for each in found(look())},
            as_json=args.json,
        )
    answer = look()
    return show(args, answer, text(found(answer)))


def watched(
    screen: Callable[[], str], lines: Callable[[], Mapping[str, str]], *, as_json: bool = False
) -> int:
    """In a terminal `screen`, drawn anew when it changes; elsewhere each of the named `lines` that changes.

    The first look raises what it raises; later ones say so and go on, for a daemon comes back.
    """
    try:
        if has_screen() and not as_json:
            _draw(screen)
        else:
            _print(lines)
    except KeyboardInterrupt:
        pass
    return OK


def _draw(look: Callable[[], str]) -> None:
    seen, lost = look(), ""
    with whole() as screen:
        while True:
            screen.draw(seen, lost)
            if screen.is_quit(within_s=EVERY_S):
                return
            try:
                seen, lost = look(), ""
            except (UnreachableError, RefusedError) as error:
                lost = f"not heard from, trying again: {safe(error)}"


def _print(lines: Callable[[], Mapping[str, str]]) -> None:
    seen: Mapping[str, str] = {}
    fresh, lost = lines(), ""
    ended = select.poll()
    ended.register(sys.stdout, 0)  # of a pipe that is closed poll(2) tells unasked
    while True:
        for name, line in fresh.items():
            if seen.get(name) != line:
                sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        seen = fresh
        if ended.poll(EVERY_S * 1000):
            raise BrokenPipeError("nobody reads any more")
        try:
            fresh, lost = lines(), ""
        except (UnreachableError, RefusedError) as error:
            if str(error) != lost:
                complain(f"{error}; trying again")
            lost = str(error)
