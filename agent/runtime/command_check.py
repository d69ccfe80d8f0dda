"""Lints the flags that a target's server runs with, in a thread: it takes longer than a tick may."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import Reading
from flettner.agent.machine.transitions import describe_serve_config
from flettner.agent.runtime.companion import Observable
from flettner.vllm_facts.serve_config import Finding, ServeConfig

LOOK_EVERY_S = 5.0
MEASURED = frozenset({"M5", "W1"})
"""Rules that are measured better here. M5 asks for more of the GPU's memory: the policy `memory_share` knows
who else is on it, and whether a green has to fit beside. W1 has first values for a server without traffic."""
log = structlog.get_logger(__name__)

CommandLint = Callable[[ServeConfig], tuple[Finding, ...]]


def lint_command(config: ServeConfig) -> tuple[Finding, ...]:
    """What `flettner lint` finds. The server's environment is not known, so no variable is judged.

    A server that runs refutes errors, which say that it does not start. A rule of MEASURED needs more than
    the flags.
    """
    from flettner.lint.fixes import find_fixes  # noqa: PLC0415 - the rules cost the start of the daemon a quarter second
    from flettner.lint.rules import all_lints  # noqa: PLC0415

    findings = find_fixes(config, all_lints()).findings
    shown = (finding for finding in findings if finding.rule not in MEASURED and not finding.env)
    return tuple(finding for finding in shown if finding.severity != "error")


class CommandCheck:
    """The findings on the flags in force. They are computed again when the flags or the host change."""

    def __init__(self, lint: CommandLint = lint_command, *, gpu: str = "", profile: str = "") -> None:
        """`gpu` and `profile`: as the operator wrote them."""
        self.findings: tuple[Finding, ...] = ()
        self._gpu, self._profile = gpu, profile
        self._lint = lint
        self._checked: ServeConfig | None = None

    async def run(self, target: Observable) -> None:
        while True:
            await self.update(target.state.fleet.blue, target.reading)
            await asyncio.sleep(LOOK_EVERY_S)

    async def update(self, server: Server | None, reading: Reading | None) -> None:
        if server is None:
            self.findings, self._checked = (), None
            return
        config = replace(describe_serve_config(server, reading, self._gpu), profile=self._profile)
        if config == self._checked:
            return
        self._checked = config
        try:
            self.findings = await asyncio.to_thread(self._lint, config)
        except Exception:
            self.findings = ()  # a defect of advice must not end the daemon
            log.exception("lint.failed", server=server.name)
