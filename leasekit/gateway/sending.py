"""Sending what somebody is told: CloudEvents by POST, signed as Standard Webhooks says, and mail by SMTP.

A webhook goes to an address that all the world can reach, or that the deploy file allows: the name is resolved once,
what it resolves to is checked, and that very address is connected to. No redirect is followed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import ipaddress
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import trio

from leasekit.client.asking import trusted
from leasekit.config.gateway import ADDRESS, GatewayTable, MailTable
from leasekit.config.instants import format_instant
from leasekit.core.errors import LeasekitError
from leasekit.core.time import SECOND, Instant
from leasekit.gateway.instants import iso, moment
from leasekit.gateway.notices import DeliveryRecord, Notification, RuleRecord, one_line

SEND_WITHIN: Final = 10.0
"""How long a receiver may take, in seconds."""
SECRET_PREFIX: Final = "whsec_"
CLOUD_EVENT: Final = "application/cloudevents+json"


class SendingError(LeasekitError):
    """Something could not be sent; the text says why."""


def data_of(notice: Notification) -> dict[str, Any]:
    """What happened, for programs."""
    return {
        "event": notice.kind, "project": notice.project, "lease": notice.lease, "name": notice.name,
        "type": notice.type, "units": notice.units, "start": iso(notice.start), "end": iso(notice.end),
        "reason": notice.reason, "code": notice.code, "text": notice.words,
    }  # fmt: skip


def cloud_event(gateway: str, delivery: DeliveryRecord) -> bytes:
    """A delivery as a CloudEvent 1.0 in JSON."""
    notice = delivery.notice
    return msgspec.json.encode({
        "specversion": "1.0", "id": delivery.id, "source": f"/leasekit/{gateway}/{notice.project}",
        "type": f"leasekit.lease.{notice.kind}", "subject": notice.lease or notice.project, "time": iso(notice.at),
        "datacontenttype": "application/json", "data": data_of(notice),
    })  # fmt: skip


def signed(secret: str, id_: str, now: Instant, body: bytes) -> dict[str, str]:
    """The headers by which a receiver knows that a message is ours and new, as https://www.standardwebhooks.com has
    them: HMAC-SHA256 over the id, the time in seconds and the body.
    """
    at = str(now // SECOND)
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.new(key, b".".join([id_.encode(), at.encode(), body]), hashlib.sha256).digest()
    return {
        "webhook-id": id_, "webhook-timestamp": at, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"
    }  # fmt: skip


def check_url(url: str) -> httpx.URL:
    """A URL that a webhook may have. Raises :class:`SendingError`."""
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SendingError(f"url: found {url!r:.100}: {error}") from None
    if found.scheme not in ("http", "https") or not found.host or found.userinfo:
        raise SendingError(f"url: found {url!r:.100}, expected http:// or https://, a host, and no user")
    if not has_port(found):
        raise SendingError(f"url: found port {found.port}, expected 1 to 65535")
    return found


def has_port(url: httpx.URL) -> bool:
    """Whether there is a port as the URL names it, if it names one."""
    return url.port is None or 0 < url.port <= 65_535


async def addresses(url: httpx.URL, networks: Sequence[str]) -> list[str]:
    """What the host of a URL resolves to, if all of it may be sent to. Raises :class:`SendingError`."""
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = await trio.socket.getaddrinfo(url.host, port, type=trio.socket.SOCK_STREAM)
    except OSError as error:
        raise SendingError(f"url: the host {url.host!r:.100} can't be resolved: {error.strerror}") from None
    allowed = [ipaddress.ip_network(one) for one in networks]
    made = []
    for *_, where in found:
        address = ipaddress.ip_address(str(where[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        is_public = address.is_global and not address.is_multicast
        if not is_public and not any(address in network for network in allowed):
            named = f"{address}, of {url.host}," if url.host != str(address) else url.host
            raise SendingError(f"url: {named} is an internal address: webhook_networks does not allow it")
        made.append(str(address))
    return made


async def post(
    url: str, networks: Sequence[str], body: bytes, headers: Mapping[str, str], within: float = SEND_WITHIN
) -> None:
    """POST it. Raises :class:`SendingError`, also for an answer that is not 2xx."""
    target = check_url(url)
    try:
        with trio.fail_after(within):
            (address, *_) = await addresses(target, networks)
            host = target.netloc.decode("ascii")
            verify = await trio.to_thread.run_sync(trusted, url)
            async with httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=verify) as client:
                asked = client.build_request(
                    "POST", target.copy_with(host=address), content=body,
                    headers={**headers, "host": host, "content-type": CLOUD_EVENT, "user-agent": "leasekit"},
                    extensions={"sni_hostname": target.host},
                )  # fmt: skip
                answer = await client.send(asked, stream=True)  # nobody reads what a receiver says
                await answer.aclose()
    except trio.TooSlowError:
        raise SendingError(f"{target.host} gave no answer within {within:g} s") from None
    except httpx.HTTPError as error:
        raise SendingError(f"{target.host}: {error or type(error).__name__}") from None
    if not 200 <= answer.status_code < 300:
        raise SendingError(f"{target.host} answered {answer.status_code}")


def check_mail(address: str, table: MailTable | None) -> MailTable:
    """How messages are sent. Raises :class:`SendingError` for an address that none is sent to."""
    if table is None:
        raise SendingError("mail: the gateway has no mail server (mail in its table of the deploy file)")
    if not ADDRESS.fullmatch(address):
        raise SendingError(f"mail: found {address!r:.100}, expected an address such as ada@lab.example")
    domain = address.rpartition("@")[2].lower()
    if table.domains and domain not in [one.lower() for one in table.domains]:
        raise SendingError(f"mail: found {domain!r}, allowed are {', '.join(table.domains)}")
    return table


def message(table: MailTable, to: str, delivery: DeliveryRecord) -> EmailMessage:
    """A delivery as a message, in plain text and in HTML. Nothing of a lease can be more than a value in it."""
    from email.policy import SMTP  # takes long to import, and most gateways send no mail

    notice, made = delivery.notice, EmailMessage(policy=SMTP)
    made["From"], made["To"], made["Subject"] = table.sender, to, notice.words[:200]
    made["Date"] = format_datetime(moment(notice.at))
    made["Message-ID"] = make_msgid(delivery.id, table.sender.rpartition("@")[2])
    made["Auto-Submitted"] = "auto-generated"
    times = {"start": notice.start, "end": notice.end}
    told = {**data_of(notice), **{name: format_instant(at // SECOND * SECOND) for name, at in times.items() if at >= 0}}
    rows = [(name, one_line(str(value))) for name, value in told.items() if value and name != "text"]
    made.set_content("\n".join([notice.words, "", *(f"{name}: {value}" for name, value in rows), ""]))
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    made.add_alternative(f"<p>{html.escape(notice.words)}</p><table>{cells}</table>", subtype="html")
    return made


def send_mail(table: MailTable, made: EmailMessage) -> None:
    """Hand a message to the server; to be called in a thread. Raises :class:`SendingError`."""
    host, _, port = table.server.rpartition(":")
    try:
        if table.tls == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                host, int(port), timeout=SEND_WITHIN, context=ssl.create_default_context()
            )
        else:
            server = smtplib.SMTP(host, int(port), timeout=SEND_WITHIN)
        with server:
            if table.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
            if table.user:
                server.login(table.user, Path(table.password_file).read_text("utf-8").strip())
            server.send_message(made)
    except (OSError, smtplib.SMTPException) as error:
        raise SendingError(f"{table.server}: {error}") from None


async def send(gateway: str, table: GatewayTable, rule: RuleRecord, one: DeliveryRecord, now: Instant) -> None:
    """Send one delivery of a rule. Raises :class:`SendingError`."""
    if rule.url:
        body = cloud_event(gateway, one)
        await post(rule.url, table.webhook_networks, body, signed(rule.secret, one.id, now, body))
        return
    mail = check_mail(rule.mail, table.mail)
    await trio.to_thread.run_sync(send_mail, mail, message(mail, rule.mail, one), abandon_on_cancel=True)
