"""A Unix socket in front of the Docker Engine's that can hang or close while the Engine runs."""

import asyncio
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK = 64 * 1024


class EngineSocket:
    """`async with EngineSocket() as socket`: `socket.host` is for a client. It may be closed and reopened.

    A request with one of `unanswered` in its first line reaches the Engine, but its answer goes nowhere.
    """

    def __init__(self, engine: str = "/var/run/docker.sock") -> None:
        self.unanswered: set[str] = set()
        self.requests: list[str] = []  # first lines: "POST /v1.41/containers/create?name=x HTTP/1.1"
        self._engine = engine
        self._folder = Path(tempfile.mkdtemp(prefix="engine-"))  # a pytest folder is too long for a socket
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def host(self) -> str:
        return f"unix://{self._path}"

    @property
    def connections(self) -> int:
        return len(self._open)

    @property
    def _path(self) -> Path:
        return self._folder / "docker.sock"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        shutil.rmtree(self._folder)

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        """Cut all connections and stop listening."""
        self._path.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(0)  # serve the connections accepted just now
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*self._open)

    def times(self, words: str) -> int:
        """Number of requests with these words in their first line."""
        return sum(words in line for line in self.requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        task.add_done_callback(lambda task: self._open.pop(task, None))
        engine_reader, engine_writer = await asyncio.open_unix_connection(self._engine)
        silent = asyncio.Event()
        answers = asyncio.create_task(self._answers(engine_reader, writer, silent))
        with suppress(OSError):  # one side has left
            await self._requests(reader, engine_writer, silent)
        answers.cancel()
        await asyncio.wait([answers])
        for side in (writer, engine_writer):
            side.close()
            with suppress(OSError):
                await side.wait_closed()

    async def _requests(
        self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        while chunk := await reader.read(_CHUNK):
            line = chunk.partition(b"\r\n")[0].decode("utf-8", "replace")
            if line.endswith(" HTTP/1.1"):
                self.requests.append(line)
                if any(words in line for words in self.unanswered):
                    silent.set()
            engine.write(chunk)
            await engine.drain()

    async def _answers(
        self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while chunk := await engine.read(_CHUNK):
                if not silent.is_set():
                    writer.write(chunk)
                    await writer.drain()
            if not silent.is_set():
                writer.close()
