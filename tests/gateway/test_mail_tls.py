"""Mail over TLS to a real SMTP server: whom a gateway believes that it is the server, and when it shows a password."""

from __future__ import annotations

import datetime
import ipaddress
import queue
import socket
import ssl
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from polling import PATIENCE

from leasekit.config.gateway import MailTable
from leasekit.gateway.sending import SendingError, send_mail

Started = Callable[..., int]


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for a server of this name at 127.0.0.1, by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(name)] if name != "127.0.0.1" else [x509.IPAddress(ipaddress.ip_address(name))]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


class Post:
    """A server's handler, which keeps what comes: whether it came over TLS, by whom, and the message."""

    def __init__(self) -> None:
        self.got: queue.Queue[tuple[bool, str, bytes]] = queue.Queue()
        self.logins: list[tuple[bool, bytes]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Take one."""
        self.got.put((_over_tls(server), str(session.auth_data or ""), envelope.content))
        return "250 OK"

    def authenticate(
        self, server: Any, session: Any, envelope: Any, mechanism: str, shown: LoginPassword
    ) -> AuthResult:
        """Whether somebody may send."""
        self.logins.append((_over_tls(server), shown.password))
        good = (shown.login, shown.password) == (b"leasekit", b"sesame")
        return AuthResult(success=good, handled=False, auth_data="leasekit" if good else None)


def _over_tls(server: Any) -> bool:
    return server.transport.get_extra_info("ssl_object") is not None


class ImplicitTls(Controller):
    """A server whose connections are TLS from their first byte on, also when it looks whether it is up itself."""

    def _trigger_server(self) -> None:
        with socket.create_connection((self.hostname, self.port), PATIENCE):
            pass


@pytest.fixture
def box() -> Post:
    """Where messages come."""
    return Post()


@pytest.fixture
def started(box: Post, tmp_path: Path) -> Iterator[Started]:
    """Starts a server with the certificate of a name, which speaks TLS at once or when asked; returns its port."""
    servers: list[Controller] = []

    def start(name: str, *, at_once: bool = False) -> int:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate(tmp_path, name))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        more: dict[str, Any] = {"authenticator": box.authenticate, "auth_required": True}
        if at_once:
            made: Controller = ImplicitTls(
                box, hostname="127.0.0.1", port=port, ssl_context=context, auth_require_tls=False, **more
            )
        else:
            made = Controller(box, hostname="127.0.0.1", port=port, tls_context=context, require_starttls=True, **more)
        made.start()
        servers.append(made)
        return port

    yield start
    for server in servers:
        server.stop()


def table(tmp_path: Path, port: int, tls: str, password: str = "sesame") -> MailTable:
    """How the gateway sends."""
    file = tmp_path / "password"
    file.write_text(password + "\n")
    return MailTable(
        server=f"127.0.0.1:{port}", sender="leasekit@lab.example", tls=tls, user="leasekit", password_file=str(file)
    )  # type: ignore[arg-type]


def letter() -> EmailMessage:
    """What is sent."""
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = "leasekit@lab.example", "ada@lab.example", "hello"
    made.set_content("It was granted.")
    return made


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_mail_goes_over_tls_to_a_server_that_is_known(
    started: Started, box: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    """By ``STARTTLS``, or TLS from the first byte on; the password is shown inside it alone."""
    port = started("127.0.0.1", at_once=tls == "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "127.0.0.1.crt"))
    send_mail(table(tmp_path, port, tls), letter())
    over_tls, who, content = box.got.get(timeout=PATIENCE)
    assert (over_tls, who) == (True, "leasekit")
    assert b"It was granted." in content
    assert box.logins == [(True, b"sesame")]


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest.mark.parametrize("known", [False, True])
def test_nothing_is_shown_to_a_server_that_is_another(
    started: Started, box: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: str, known: bool
) -> None:
    """One that nobody vouches for, and one with a certificate for another name: neither password nor message goes."""
    port = started("mx.elsewhere.example" if known else "127.0.0.1", at_once=tls == "tls")
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "mx.elsewhere.example.crt"))
    with pytest.raises(SendingError, match="certificate verify failed"):
        send_mail(table(tmp_path, port, tls), letter())
    assert (box.logins, box.got.qsize()) == ([], 0)


def test_a_server_that_takes_plain_mail_only_gets_none(
    box: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody in between may have left ``STARTTLS`` out of what the server offers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = Controller(box, hostname="127.0.0.1", port=port)
    server.start()
    try:
        with pytest.raises(SendingError, match="STARTTLS"):
            send_mail(table(tmp_path, port, "starttls"), letter())
        assert (box.logins, box.got.qsize()) == ([], 0)
    finally:
        server.stop()


def test_a_wrong_password_is_told(started: Started, box: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown is not."""
    port = started("127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "127.0.0.1.crt"))
    with pytest.raises(SendingError, match="535") as raised:
        send_mail(table(tmp_path, port, "starttls", "wrong"), letter())
    assert "wrong" not in str(raised.value)
    assert box.got.qsize() == 0
