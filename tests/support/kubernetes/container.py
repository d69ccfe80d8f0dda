"""One container of a pod: a process that is started again, with probes and a log for each start."""

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.support.kubernetes.api import Api, Json
from tests.support.kubernetes.container_spec import ConfigError, command_line, environment_of
from tests.support.kubernetes.events import now
from tests.support.kubernetes.probes import probe_of
from tests.support.kubernetes.volumes import making_root, provide, root_folder

_LONGEST_BACK_OFF = 30  # times the first one: 10 s to 5 minutes, for the kubelet
_GRACE_S = 30.0


class PodContext(Protocol):
    """What a container needs of its pod."""

    document: Json
    folder: Path
    address: str
    netns: str
    api: Api
    image_env: Mapping[str, str]
    back_off_s: float
    terminating: bool

    def changed(self) -> None: ...
    def event(self, reason: str, message: str, *, warns: bool = True) -> None: ...


class Container:
    """`state` and `last`: as in its status. `kill_reason`: of the next exit, such as OOMKilled."""

    def __init__(self, spec: Json, pod: PodContext) -> None:
        self.spec, self.pod, self.name = spec, pod, str(spec["name"])
        self.state: Json = {"waiting": {"reason": "ContainerCreating"}}
        self.last: Json = {}
        self.restarts = 0
        self.started = self.ready = self.has_run = False
        self.kill_reason = ""
        self.process: asyncio.subprocess.Process | None = None
        self._ended = asyncio.Event()  # `state` tells the exit of `process`
        self.log: Path | None = None  # of the running or last process
        self.last_log: Path | None = None  # of the process that `last` is about

    async def run(self) -> None:
        """Until the restart policy says that it ends; `state` then is `terminated`."""
        back_off_s = 0.0  # the first restart is immediate
        policy = self.pod.document["spec"].get("restartPolicy", "Always")
        while True:
            await self._pull()
            code = await self._run_once()
            if self.pod.terminating or policy == "Never" or (policy == "OnFailure" and code == 0):
                return
            self.last, self.last_log = self.state, self.log
            if back_off_s:
                where = f"{self.name} pod={self.pod.document['metadata']['name']}"
                message = f"back-off {back_off_s:g}s restarting failed container={where}"
                self._wait("CrashLoopBackOff", message)
                self.pod.event("BackOff", "Back-off restarting failed container")
                await asyncio.sleep(back_off_s)
            first_s = self.pod.back_off_s
            back_off_s = min(back_off_s * 2 or first_s, first_s * _LONGEST_BACK_OFF)
            self.restarts += 1

    async def _pull(self) -> None:
        """An image whose tag is `missing` is not in its registry."""
        image = self.spec["image"]
        while image.endswith(":missing"):
            why = f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": not found'
            self._wait("ErrImagePull", why)
            self.pod.event("Failed", f'Failed to pull image "{image}": {why}')
            self.pod.event("Failed", "Error: ErrImagePull")
            await asyncio.sleep(self.pod.back_off_s)
            self._wait("ImagePullBackOff", f'Back-off pulling image "{image}"')
            self.pod.event("BackOff", f'Back-off pulling image "{image}"', warns=False)
            self.pod.event("Failed", "Error: ImagePullBackOff")
            await asyncio.sleep(self.pod.back_off_s * 10)

    async def _run_once(self) -> int:
        """Start, probe and wait for the exit; the exit code as a shell gives it."""
        process = self.process = await self._start()
        self._ended.clear()
        begun = now()
        self.state, self.has_run = {"running": {"startedAt": begun}}, True
        self.started = "startupProbe" not in self.spec
        self.ready = self.started and "readinessProbe" not in self.spec
        self.pod.event("Started", f"Started container {self.name}", warns=False)
        self.pod.changed()
        probes = asyncio.create_task(self._probe())
        try:
            code = await process.wait()
        finally:
            probes.cancel()
            await asyncio.wait({probes})
            self._ended.set()
        code = 128 - code if code < 0 else code
        reason = self.kill_reason or ("Completed" if code == 0 else "Error")
        self.state = {
            "terminated": {"exitCode": code, "reason": reason, "startedAt": begun, "finishedAt": now()}
        }
        self.kill_reason, self.ready, self.started = "", False, False
        self.pod.changed()
        return code

    async def _environment(self) -> dict[str, str]:
        """With its volumes written; waits for ConfigMaps and Secrets that are missing."""
        pod = self.pod
        while True:
            try:
                await provide(pod.document, pod.folder / "volumes", pod.api)
                given = await environment_of(self.spec, pod.document, pod.address, pod.api)
                return {**pod.image_env, "HOSTNAME": pod.document["metadata"]["name"]} | given
            except ConfigError as error:
                self._wait("CreateContainerConfigError", str(error))
                pod.event("Failed", f"Error: {error}")
                await asyncio.sleep(pod.back_off_s)

    async def _start(self) -> asyncio.subprocess.Process:
        pod = self.pod
        environment = await self._environment()
        volumes = pod.folder / "volumes"
        root = making_root(self.spec, pod.document, volumes)
        options = f"--ignore-environment --chdir={self.spec.get('workingDir', '/')}"
        enter = f'exec chroot {root_folder(self.spec, volumes)} env {options} "$@"'
        self.log = pod.folder / f"{self.name}-{self.restarts}.log"
        with self.log.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", pod.netns),
                *("sh", "-c", f"{root}\n{enter}", "sh"),
                *(f"{name}={value}" for name, value in environment.items()),
                *command_line(self.spec, environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _probe(self) -> None:
        startup = probe_of(self.spec, "startupProbe", self.pod.address)
        if startup is not None:
            async for good, why in startup.results():
                if good:
                    break
                await self._restart("startup", why)
                return
            self.started = True
            self.ready = "readinessProbe" not in self.spec
            self.pod.changed()
        await asyncio.gather(self._check_readiness(), self._check_liveness())

    async def _check_readiness(self) -> None:
        probe = probe_of(self.spec, "readinessProbe", self.pod.address)
        if probe is not None:
            async for good, why in probe.results():
                if good is not self.ready:
                    self.ready = good
                    self.pod.changed()
                if why:
                    self.pod.event("Unhealthy", f"Readiness probe failed: {why}")

    async def _check_liveness(self) -> None:
        probe = probe_of(self.spec, "livenessProbe", self.pod.address)
        if probe is not None:
            async for good, why in probe.results():
                if not good:
                    await self._restart("liveness", why)
                    return

    async def _restart(self, kind: str, why: str) -> None:
        self.pod.event("Unhealthy", f"{kind.capitalize()} probe failed: {why}")
        said = f"Container {self.name} failed {kind} probe, will be restarted"
        self.pod.event("Killing", said, warns=False)
        await self.stop(self.pod.document["spec"].get("terminationGracePeriodSeconds", _GRACE_S))

    async def stop(self, grace_s: float) -> None:
        """The preStop hook, SIGTERM, and SIGKILL for all its processes after `grace_s`."""
        process = self.process
        if process is None or self._ended.is_set():
            return
        if grace_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._pre_stop(process.pid)
                    self.signal(signal.SIGTERM)
                    await process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await self._ended.wait()

    async def _pre_stop(self, pid: int) -> None:
        """Its command runs in the container."""
        hook = self.spec.get("lifecycle", {}).get("preStop")
        if hook is not None:
            inside = ("nsenter", f"--target={pid}", "--mount", "--net", "--root")
            path = f"PATH={self.pod.image_env['PATH']}"
            run = asyncio.create_subprocess_exec(*inside, "env", path, *hook["exec"]["command"])
            await (await run).wait()

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def status(self) -> Json:
        """A ContainerStatus."""
        image = self.spec["image"]
        tagged, _, digest = image.partition("@")
        digest = digest or f"sha256:{hashlib.sha256(tagged.encode()).hexdigest()}"
        return {
            "name": self.name,
            "image": image,
            "imageID": f"{tagged.rpartition(':')[0]}@{digest}" if self.has_run else "",
            "containerID": f"processes://{self.process.pid}" if self.process else "",
            "state": self.state,
            "lastState": self.last,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }

    def _wait(self, reason: str, message: str) -> None:
        self.state = {"waiting": {"reason": reason, "message": message}}
        self.pod.changed()
