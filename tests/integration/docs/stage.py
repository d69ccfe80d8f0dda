"""The environment for the commands of a page: a folder with a config, a simulated `vllm serve`, a daemon.

`PLACEHOLDERS` maps the names of the pages to the names in this environment.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from flettner.tools.cli.dispatch import parser
from tests.e2e.test_adopting import _answers
from tests.integration.docs.blocks import REPOSITORY, blocks, commands
from tests.support.config_builder import SERVERS, TARGET, SiteConfig
from tests.support.ports import free_port
from tests.support.rig import PATIENCE_S, Document, Rig, at_rest, until
from tests.unit.notifiers.receiver import receiving

VLLM = f"""#!{sys.executable}
import runpy, sys
sys.argv = ["server", *sys.argv[2:], "--sim-start-s", "0.2", "--sim-speed", "3"]
runpy.run_module("flettner.simulator.server", run_name="__main__")
"""
SERVE = "vllm serve Qwen/Qwen3-8B --port 8000 --max-num-seqs 16"
"""The server for pages that start none."""

PLACEHOLDERS: Mapping[str, str] = {
    r"\bsudo ": "",
    r"/opt/flettner/bin/": "",
    r"\S+/python -m vllm\.entrypoints\.openai\.api_server": "vllm serve",
    r"flettner init\b( \S+)?": "flettner init found.toml",  # it never overwrites a file
    r"(/etc/flettner/)?\b(flettner|tutorial)\.toml": "flettner.toml",
    r"/etc/flettner/tokens": "tokens",
    r"(flettner audit \w+)(.*) --state-dir \S+": r"\1\2",
    r"(flettner audit \w+)": r"\1 --state-dir s",
    r"--for 30\b": "--for 1",
    r"\bseq 100000\b": "seq 8",
}
FINDS = {"lint", "advise"}  # exit status 1: findings


@dataclass(frozen=True, kw_only=True)
class PageConfig(SiteConfig):
    """The config of a page, with free ports and a real receiver."""

    config: str
    receiver: str
    vllm: int

    def text(self, *, api: int, listen: int) -> str:
        text = self.config
        for port, own in ((8000, self.vllm), (8080, listen), (8090, api)):
            text = text.replace(f":{port}", f":{own}")
        engine = f'kind = "process"\nports = [{SERVERS[0]}, {SERVERS[-1]}]\nstop_s = 2.0'
        text = text.replace('kind = "process"', engine).replace('state_dir = "state"', 'state_dir = "s"')
        return f'{text}\n[[notify]]\nkind = "slack"\nurl = "{self.receiver}"\n'


@dataclass
class Stage:
    rig: Rig
    vllm: int  # its port
    environment: dict[str, str]
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def run(self, command: str) -> None:
        """Raises AssertionError if the command fails."""
        words = next(commands(command), [""])
        if words[0] == "flettner" and words[1] == "run":
            await self._daemon()
        elif "vllm serve" in self.filled(command) and not command.startswith("flettner"):
            await self._serve(command)
        else:
            await self._ready(command, words)
            await self._shell(await self._with_ids(self.filled(command)))

    def filled(self, command: str) -> str:
        """Return the command with the names of this environment, except ids."""
        for written, here in PLACEHOLDERS.items():
            command = re.sub(written, here, command)
        for port, own in ((8000, self.vllm), (8080, self.rig.listen), (8090, self.rig.api)):
            command = re.sub(rf"\b{port}\b", str(own), command)
        return command.replace("PASTE-IT-HERE", self.rig.token).removesuffix(" &")

    async def _serve(self, command: str) -> None:
        shell = ("bash", "-c", self.filled(command))
        null = asyncio.subprocess.DEVNULL
        self.started.append(
            await asyncio.create_subprocess_exec(
                *shell,
                cwd=self.rig.home,
                env=self.environment,
                stdout=null,
                stderr=null,
                start_new_session=True,
            )
        )
        url = f"http://127.0.0.1:{self.vllm}"
        await until(lambda: _answers(url), bool, "the server to answer")
        assert await self._run_script(f"curl -fsS {url}/metrics | tee before.prom > after.prom") == (0, "")

    async def _daemon(self) -> None:
        """Start or restart the daemon; it must see the server and serve the console."""
        if not self.started:
            await self._serve(SERVE)
        if self.rig.daemon is not None:
            assert await self.rig.kill(signal.SIGTERM) == 0, self.rig.log()[-2000:]
        await self.rig.start()
        await until(self.rig.target, lambda target: target and target["servers"], "the server to be seen")
        if 'mode = "advise"' not in self.rig.config.read_text():
            await self.rig.serving()
        async with aiohttp.ClientSession() as session, session.get(self.environment["FLETTNER_URL"]) as page:
            assert (page.status, page.content_type) == (200, "text/html")

    async def _ready(self, command: str, words: list[str]) -> None:
        """Meet the preconditions of a command: a server, a daemon, a running rollout."""
        asks_the_daemon = ":8090" in command
        if words[0] == "flettner":
            if words[1] in {"init", "check", "advise"} and not self.started:
                await self._serve(SERVE)
            asks_the_daemon = words[1] == "audit" or hasattr(parser().parse_args(words[1:]), "url")
        if asks_the_daemon and self.rig.daemon is None:
            text = self.rig.config.read_text()
            self.rig.config.write_text(text.replace('mode = "advise"', 'mode = "approve"'))
            await self._daemon()
        if words[1:2] == ["propose"]:
            await self._rested()
        if words[1:2] == ["abort"] and at_rest(await self.rig.target()):
            await self.rig.change(max_num_seqs=24)

    async def _rested(self) -> Document:
        return await until(self.rig.target, at_rest, "the target to rest")

    async def _with_ids(self, command: str) -> str:
        """Return the command with the id of an open suggestion and of an existing token."""
        if f"{TARGET}-s1" in command:
            waits = (await self._rested())["suggestion"]
            made = await self.rig.suggestion(waits) if waits else {}
            if made.get("status") != "open":
                made = await self.rig.propose(max_num_seqs=32)
            command = command.replace(f"{TARGET}-s1", str(made["id"])).replace("DIGEST-OF-IT", made["digest"])
        if "token revoke" in command:
            listing = await self._run_script("flettner token list --tokens-file tokens --json")
            last = json.loads(listing[1])["tokens"][-1]["id"]
            command = re.sub(r"\b[0-9a-f]{8}$", last, command)
        return command

    async def _shell(self, command: str) -> None:
        """Run as in a terminal: answer prompts with yes, and keep exported variables."""
        program, *words = next(commands(command), [""])
        script = command
        if program == "flettner" and words[0] == "approve":
            script = f"script -qec {shlex.quote(command)} /dev/null <<< y"
        status, output = await self._run_script(f"set -euo pipefail\n{script}\nexport -p > exported")
        allowed = {0, 1} if words[:1] and words[0] in FINDS else {0}
        assert status in allowed, f"{command}\nexit status {status}\n{output}"
        listing = await self._run_script("set -a; . ./exported; env -0")
        self.environment = dict(
            variable.split("=", 1) for variable in listing[1].split("\0") if "=" in variable
        )

    async def _run_script(self, script: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script),
            cwd=self.rig.home,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
        return process.returncode or 0, output.decode(errors="replace")


@asynccontextmanager
async def stage(home: Path, page: str) -> AsyncIterator[Stage]:
    """Uses the page's config, else the README's with the page's bounds; removes everything afterwards."""
    (home / "bin").mkdir()
    (home / "bin" / "vllm").write_text(VLLM)
    (home / "bin" / "vllm").chmod(0o755)
    for folder in ("deploy", "docs", "examples"):
        (home / folder).symlink_to(REPOSITORY / folder)
    tables = blocks("toml")
    configs = {block.page: block.text for block in tables if "[[targets]]" in block.text}
    bounds = [
        block.text for block in tables if block.page == page and block.text.startswith("[targets.bounds.")
    ]
    vllm = free_port()
    async with receiving() as receiver:
        site_config = PageConfig(
            config=configs.get(page, "\n".join((configs["README.md"], *bounds))),
            receiver=receiver.url,
            vllm=vllm,
        )
        rig = Rig(home=home, site_config=site_config)
        rig.prepare()
        path = f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLETTNER_")}
        environment |= {"PATH": path, "PYTHONPATH": str(REPOSITORY), "FLETTNER_TOKEN": rig.token}
        here = Stage(rig, vllm, {**environment, "FLETTNER_URL": f"http://127.0.0.1:{rig.api}"})
        try:
            yield here
        finally:
            await rig.tear_down()
            for process in here.started:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
