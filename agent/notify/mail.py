"""Sends mails by SMTP (RFC 5321), with TLS whose certificate is checked. Blocks: called in a thread."""

import smtplib
import socket
import ssl

from flettner.agent.domain.errors import NoticeError
from flettner.agent.notify.reachability import describe_failure
from flettner.agent.notify.rules import OutgoingMail

PERMANENT = 500  # of SMTP's status codes


def send_mail(mail: OutgoingMail, timeout_s: float, accepted: set[str]) -> None:
    """Send every message, also after one is refused. Raises NoticeError, with no address and no content.

    `timeout_s`: of each step. `accepted`: Message-IDs that the server has, which are not sent again.
    """
    try:
        with _connect(mail, timeout_s) as smtp:
            if mail.login is not None:
                smtp.login(*mail.login)
            refused = _send_each(smtp, mail, accepted)
    except smtplib.SMTPNotSupportedError:
        raise NoticeError("the mail server offers neither STARTTLS nor a login that is known") from None
    except smtplib.SMTPAuthenticationError as error:
        raise NoticeError(f"the mail server refused the login ({error.smtp_code})") from None
    except smtplib.SMTPResponseException as error:
        passes = error.smtp_code < PERMANENT
        raise NoticeError(f"the mail server answered {error.smtp_code}", passes=passes) from None
    except ssl.SSLCertVerificationError as error:
        raise NoticeError(f"the mail server's certificate: {error.verify_message}", passes=True) from None
    except (smtplib.SMTPException, OSError) as error:
        raise NoticeError(
            f"the mail server cannot be reached: {describe_failure(error)}", passes=True
        ) from None
    if refused:
        passes = min(refused) < PERMANENT
        raise NoticeError(f"the mail server refused {len(refused)} of the messages", passes=passes)


def _send_each(smtp: smtplib.SMTP, mail: OutgoingMail, accepted: set[str]) -> list[int]:
    """The codes of those that the server refuses."""
    refused: list[int] = []
    for message in mail.messages:
        if message["Message-ID"] in accepted:
            continue
        try:
            smtp.send_message(message)
            accepted.add(message["Message-ID"])
        except smtplib.SMTPRecipientsRefused as error:
            refused += (code for code, _ in error.recipients.values())
        except smtplib.SMTPDataError as error:
            refused.append(error.smtp_code)
    return refused


def _connect(mail: OutgoingMail, timeout_s: float) -> smtplib.SMTP:
    name = socket.gethostname()  # the library's default asks the resolver
    context = ssl.create_default_context()
    if mail.security == "tls":
        return smtplib.SMTP_SSL(mail.host, mail.port, name, timeout=timeout_s, context=context)
    smtp = smtplib.SMTP(mail.host, mail.port, name, timeout=timeout_s)
    try:
        if mail.security == "starttls":
            smtp.starttls(context=context)
    except BaseException:
        smtp.close()
        raise
    return smtp
