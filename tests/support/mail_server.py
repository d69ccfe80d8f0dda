"""Stands in for an SMTP server, with STARTTLS and a login, as RFC 5321, 3207 and 4954 describe them."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

from tests.support.kubernetes.certificates import serving

HOST, LOGIN = "127.0.0.1", ("flettner", "PLANTED")


@dataclass
class MailServer:
    tls: ssl.SSLContext
    wraps: bool = False  # TLS from the first byte
    refuses: dict[str, str] = field(default_factory=dict)  # answers, by address or command
    hangs: bool = False
    offers: tuple[str, ...] = ("STARTTLS", "AUTH PLAIN")
    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)  # commands that came without TLS
    logins: list[tuple[str, str]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_safe, address = self.wraps, ""
        if self.hangs:
            await reader.read()  # until the client gives up
            return
        writer.write(b"220 mail.example.org ESMTP\r\n")
        while line := (await reader.readline()).decode().strip():
            verb = line.split(" ")[0].upper()
            if not is_safe:
                self.plain.append(verb)
            address = line.partition("<")[2].partition(">")[0] if verb == "RCPT" else address
            answer = self.refuses.get(verb) or (self.refuses.get(address) if verb == "RCPT" else None)
            writer.write(f"{answer or self._reply(line, verb, is_safe=is_safe)}\r\n".encode())
            await writer.drain()
            if answer is None and verb == "STARTTLS":
                await writer.start_tls(self.tls)
                is_safe = True
            elif answer is None and verb == "DATA":
                content = await reader.readuntil(b"\r\n.\r\n")
                message = message_from_bytes(content[:-5], policy=policy.default)
                assert isinstance(message, EmailMessage)
                self.mails.append(message)
                writer.write(b"250 queued\r\n")
            elif verb == "QUIT":
                return

    def _reply(self, line: str, verb: str, *, is_safe: bool) -> str:
        match verb:
            case "EHLO":
                offers = [offer for offer in self.offers if not (is_safe and offer == "STARTTLS")]
                return "\r\n".join(
                    ["250-mail.example.org", *(f"250-{offer}" for offer in offers), "250 8BITMIME"]
                )
            case "AUTH":
                _, name, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
                self.logins.append((name, password))
                return "235 ok" if (name, password) == LOGIN else "535 no"
            case "STARTTLS":
                return "220 go ahead"
            case "DATA":
                return "354 go ahead"
            case "QUIT":
                return "221 bye"
            case _:
                return "250 ok"


@asynccontextmanager
async def mail_server(folder: Path, *, wraps: bool = False) -> AsyncIterator[MailServer]:
    """Its certificate, which clients trust if it is their CA file, is `folder`/mail.crt."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*serving(folder, "mail", HOST))
    stand_in = MailServer(tls=tls, wraps=wraps)
    server = await asyncio.start_server(stand_in.serve, HOST, ssl=tls if wraps else None)
    async with server:
        stand_in.port = server.sockets[0].getsockname()[1]
        yield stand_in
