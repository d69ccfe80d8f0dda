"""Compare the answers of blue and green to the golden prompts, and run the operator's check command."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from flettner.agent.domain.answers import AnswerComparison, GoldenAnswer
from flettner.agent.domain.effects import Examine
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Engine
from flettner.agent.quality.comparison import compare, flaw_of
from flettner.agent.quality.golden_prompts import GoldenPromptOptions

LAST_LINES = 3  # of the command's output, shown as its reason
LONGEST = 500  # characters of each

Twice = tuple[tuple[GoldenAnswer, ...], tuple[GoldenAnswer, ...]]


@dataclass(slots=True, kw_only=True)
class Examiner:
    """Examines the servers of one target. Answers stay in memory: prompts and answers may be private."""

    engine: Engine
    exam: GoldenPromptOptions
    _answers: tuple[Server, Twice] | None = None  # blue's answers, kept while a swap replaces it

    async def examine(self, effect: Examine) -> AnswerComparison:
        """Compare green's answers with two rounds of blue's. Raises TimeoutError, ActError."""
        async with asyncio.timeout(effect.deadline_s):
            blue, green, own_answers = effect.blue, effect.green, self._answers
            self._answers = None
            if green is not None and not effect.compare:
                unlike = AnswerComparison(ok=True, why="the answers are not compared with blue's")
                return await self._with_command(unlike, blue, green)
            if green is None:
                self._answers = blue, _require_answers(blue, (await self._ask(blue), await self._ask(blue)))
                return AnswerComparison(ok=True, why=f"{blue.name} answered the golden prompts")
            if own_answers is not None and own_answers[0] == blue:
                return await self._with_command(compare(*own_answers[1], await self._ask(green)), blue, green)
            first = await self._ask(blue)
            answers = await self._ask(green)
            _require_answers(blue, (first, again := await self._ask(blue)))
            return await self._with_command(compare(first, again, answers), blue, green)

    async def _ask(self, server: Server) -> tuple[GoldenAnswer, ...]:
        return await self.engine.answers(server, self.exam.prompts, self.exam.at_most_s)

    async def _with_command(
        self, comparison: AnswerComparison, blue: Server, green: Server
    ) -> AnswerComparison:
        """Run the operator's command, if any, unless the comparison has failed already."""
        if not comparison.ok or not self.exam.command:
            return comparison
        urls = {"{green}": f"http://{green.address}", "{blue}": f"http://{blue.address}"}
        argv = [_fill_urls(word, urls) for word in self.exam.command]
        status, last = await run_command(argv)
        if status == 0:
            return replace(comparison, why=f"{comparison.why}; {argv[0]}: {last or 'no objection'}")
        return replace(comparison, ok=False, why=f"{argv[0]} ended with status {status}: {last}")


def _fill_urls(word: str, urls: dict[str, str]) -> str:
    for name, url in urls.items():
        word = word.replace(name, url)
    return word


def _require_answers(blue: Server, rounds: Twice) -> Twice:
    """Raise ActError if blue failed most prompts: there is no baseline to compare with."""
    for answers in rounds:
        failed = sum(flaw_of(answer) == "failed" for answer in answers)
        if 2 * failed > len(answers):
            raise ActError(
                f"{blue.name} failed {failed} of {len(answers)} golden prompts: no comparison is possible"
            )
    return rounds


async def run_command(argv: Sequence[str]) -> tuple[int, str]:
    """Exit status and last output lines of a command. Its process group is killed at the end.

    Raises OSError if it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=LAST_LINES)
    try:
        if process.stdout is not None:
            while piece := await process.stdout.read(65536):
                text = (last.pop() if last else "") + piece.decode(errors="replace")
                last.extend(line[-LONGEST:] for line in text.split("\n"))
        status = await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return status, " ".join(line.strip() for line in last if line.strip())
