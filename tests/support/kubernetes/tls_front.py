"""An address of the API server with a certificate of its own, which can be replaced."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.support.kubernetes import certificates


@dataclass
class TlsFront:
    """Passes everything on to the API server at `url`. Clients trust `authority`."""

    url: str
    trusted: Path  # the authority of the API server
    folder: Path
    port: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def authority(self) -> Path:
        return self.folder / "authority.crt"

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @classmethod
    @asynccontextmanager
    async def running(cls, url: str, trusted: Path, folder: Path) -> AsyncIterator[Self]:
        made = cls(url, trusted, folder)
        await made.replace(1)
        made.publish(1)
        try:
            yield made
        finally:
            await made._stop()

    async def replace(self, number: int) -> None:
        """Close all connections, and serve with a new certificate of a new authority at the same port."""
        await self._stop()
        certificate, key = certificates.serving(self.folder, f"front-{number}", "127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    def publish(self, number: int) -> None:
        """Replace the file that clients have the authority from, as the kubelet does: by a rename."""
        fresh = self.authority.with_suffix(".new")
        fresh.write_bytes((self.folder / f"front-{number}.crt").read_bytes())
        fresh.rename(self.authority)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        where = urlsplit(self.url)
        context = ssl.create_default_context(cafile=self.trusted)
        theirs, to_them = await asyncio.open_connection(where.hostname, where.port, ssl=context)
        ours = {writer, to_them}
        self._open |= ours
        try:
            await asyncio.gather(_pump(reader, to_them), _pump(theirs, writer))
        finally:
            self._open -= ours


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # closed meanwhile
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
