"""Every error this project raises on purpose.

TrimtabError
├── ConfigError      the operator wrote something we cannot run with; the message names the key
├── ActError         an actuator could not make the world as it was asked to
│   └── FencedError  a newer daemon has written since: this one must not act
├── JournalError     the audit journal cannot be read or written
├── NoticeError      a notice could not be handed over
└── SensorError      a source answered with something that cannot be read
"""


class TrimtabError(Exception):
    """Something went wrong that trimtab knows how to name."""


class ConfigError(TrimtabError):
    """The configuration cannot be run; the message says which key and what to write instead."""


class ActError(TrimtabError):
    """The world is not as it was asked to be. `log` holds the server's own last lines, if there are any."""

    def __init__(self, why: str, log: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.why = why
        self.log = log


class FencedError(ActError):
    """A daemon with a newer epoch has written since; this one must stop acting."""


class JournalError(TrimtabError):
    """The journal cannot be read, or cannot be written: nothing new may start."""


class SensorError(TrimtabError):
    """A source answered with something that cannot be read."""


class NoticeError(TrimtabError):
    """A notice could not be handed over. `passes`: trying again may help, `after_s` (if known) from now."""

    def __init__(self, why: str, *, passes: bool = False, after_s: float | None = None) -> None:
        super().__init__(why)
        self.passes = passes
        self.after_s = after_s
