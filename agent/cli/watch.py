"""Watching something until Ctrl-C or `q`: a screen that is drawn anew, or a line for each change."""

import argparse
import json
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from urllib.parse import urlencode

from agent.cli.asking import path, show
from agent.cli.exits import OK
from agent.cli.link import Json, Link, RefusedError, UnreachableError
from agent.cli.tables import safe
from agent.cli.terminal import DIM, coloured, is_seen

EVERY_S = 1.0
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # a screen of its own, without a cursor; xterm
HOME, TO_END_OF_LINE, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
QUIT = frozenset({"q", "Q", "\x1b", ""})  # "": nobody types any more


def looked(
    args: argparse.Namespace,
    daemon: Link,
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
        if is_seen() and not as_json:
            _draw(screen)
        else:
            _print(lines)
    except KeyboardInterrupt:
        pass
    return OK


def _draw(screen: Callable[[], str]) -> None:
    seen, shown = screen(), ""
    with _screen() as keyboard:
        while True:
            if seen != shown:
                sys.stdout.write(_cut(seen))
                sys.stdout.flush()
                shown = seen
            if _typed(keyboard) in QUIT:
                return
            try:
                seen = screen()
            except (UnreachableError, RefusedError) as error:
                seen = f"{shown.partition(_AWAY)[0]}{_AWAY}{safe(error)}\n"


_AWAY = "\nnot heard from, trying again: "


def _cut(text: str) -> str:
    """As many lines as there is room for, over what was shown before."""
    columns, rows = shutil.get_terminal_size()
    lines = text.splitlines()
    room = max(1, rows - 2)
    more = [f"... {len(lines) - room} lines more"] if len(lines) > room else []
    drawn = [*(lines[:room]), *more, coloured("q ends this", DIM)[: max(columns, 20)]]
    return HOME + f"{TO_END_OF_LINE}\n".join(drawn) + TO_END_OF_LINE + TO_END


@contextmanager
def _screen() -> Iterator[int | None]:
    """Where keys are read from as they are typed; None: no keyboard is there."""
    with ExitStack() as after:
        keyboard = None
        if sys.stdin.isatty():
            keyboard = sys.stdin.fileno()
            before = termios.tcgetattr(keyboard)
            after.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, before)
            tty.setcbreak(keyboard)
        after.callback(_say, LEAVE)
        _say(ENTER)
        yield keyboard


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _typed(keyboard: int | None) -> str | None:
    """A key, or None when EVERY_S has passed without one."""
    if keyboard is None:
        time.sleep(EVERY_S)
        return None
    ready, _, _ = select.select([keyboard], [], [], EVERY_S)
    return os.read(keyboard, 16).decode(errors="replace") if ready else None


def _print(lines: Callable[[], Mapping[str, str]]) -> None:
    seen: Mapping[str, str] = {}
    fresh, lost = lines(), ""
    while True:
        for name, line in fresh.items():
            if seen.get(name) != line:
                _say(f"{line}\n")
        seen = fresh
        time.sleep(EVERY_S)
        try:
            fresh, lost = lines(), ""
        except (UnreachableError, RefusedError) as error:
            if str(error) != lost:
                sys.stderr.write(f"trimtab: {safe(error)}; trying again\n")
            lost = str(error)
