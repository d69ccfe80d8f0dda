"""The exit statuses: the same for every command."""

OK, NO, USAGE, AWAY, STOPPED = 0, 1, 2, 3, 130
EXITS: dict[int, str] = {
    OK: "success, no findings",
    NO: "failure or findings: the daemon refused the request, a check found problems, the audit journal "
    "failed verification, a message was not delivered, a rollout was rolled back",
    USAGE: "not attempted: invalid arguments, a file or server that cannot be read, or output that cannot "
    "be written",
    AWAY: "no answer: no daemon at the address; lint has no findings, but not all facts to judge by",
    STOPPED: "interrupted by Ctrl-C",
}
