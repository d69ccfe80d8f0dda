"""Every error this project raises on purpose.

FlettnerError
├── ConfigError      the configuration is invalid; the message names the key
│   └── RestartNeededError  it is valid, but a running daemon does not take it
├── ActError         an actuator could not perform an effect
│   ├── FencedError  a newer daemon has written since: this one must not act
│   └── DriftError   a third party has changed the server since
├── LockLostError    another daemon may act now: this one must not
├── JournalError     the audit journal cannot be read or written
├── ForgeError       git or a service with pull requests did not do what was asked
├── NoticeError      a notification could not be delivered
├── SensorError      a source's answer cannot be parsed
└── WorkerError      a computation in the worker process gave no result
    └── WorkerTimeoutError  it took too long
"""


class FlettnerError(Exception):
    """Base of all errors that flettner raises on purpose."""


class ConfigError(FlettnerError):
    """The configuration is invalid; the message names the key and a valid value."""


class RestartNeededError(ConfigError):
    """The changed configuration is valid, but needs a restart; the message names the keys."""


class ActError(FlettnerError):
    """An effect could not be performed. `log` holds the server's last log lines, if there are any.

    `external`: the cause lies outside the server: no evidence about its setting.
    """

    def __init__(self, why: str, log: tuple[str, ...] = (), *, external: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.log = log
        self.external = external


class FencedError(ActError):
    """A daemon with a newer epoch has written since; this one must stop acting."""


class DriftError(ActError):
    """A third party has changed the server since: its setting must be observed again."""


class LockLostError(FlettnerError):
    """Another daemon may act now: this one must not."""


class JournalError(FlettnerError):
    """The journal cannot be read or written: nothing new may start."""


class SensorError(FlettnerError):
    """A source's answer cannot be parsed."""


class ForgeError(FlettnerError):
    """Git or a service with pull requests did not do what was asked. The message contains no secret."""


class NoticeError(FlettnerError):
    """A notification could not be delivered. `passes`: a retry may help, `after_s` (if known) from now."""

    def __init__(self, why: str, *, passes: bool = False, after_s: float | None = None) -> None:
        super().__init__(why)
        self.passes = passes
        self.after_s = after_s


class WorkerError(FlettnerError):
    """The call gave no result: the worker process ended, took too long or has a defect."""


class WorkerTimeoutError(WorkerError):
    """The call took too long; the same call would again."""
