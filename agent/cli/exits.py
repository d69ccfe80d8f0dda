"""The exit statuses: the same for every command."""

OK, NO, USAGE, AWAY, STOPPED = 0, 1, 2, 3, 130
EXITS: dict[int, str] = {
    OK: "it was done, and there is nothing to object",
    NO: "the answer is no: refused by the daemon, findings, a config that would not work, an audit that "
    "is not as it was written, a message that did not arrive, a rollout that was taken back",
    USAGE: "not tried: a mistake in the command line, or a file or a server that cannot be read; or an "
    "answer that cannot be written",
    AWAY: "no daemon answers at the address",
    STOPPED: "stopped by Ctrl-C",
}
