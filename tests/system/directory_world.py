"""A real slapd, with and without TLS, for tests of what is told to a directory."""

from __future__ import annotations

import importlib
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from system.system_waits import wait_until

from leasekit.core.settings import structure
from leasekit.drivers.directory.ldap import LdapExport, LdapSettings

BASE = "dc=example,dc=org"
ADMIN = f"cn=admin,{BASE}"
WRITER = f"cn=leasekit,{BASE}"
READER = f"cn=reader,{BASE}"
PASSWORD = "s3cret $(id) 'x'"
SLAPD = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCertificateFile {folder}/localhost.pem
TLSCertificateKeyFile {folder}/localhost.key
database mdb
maxsize 10485760
suffix "{base}"
rootdn "{admin}"
rootpw "{password}"
directory {folder}/data
access to attrs=userPassword by anonymous auth
access to dn.subtree="{base}" by dn.exact="{writer}" write by users read
limits dn.exact="{writer}" size=unlimited
"""
"""The two lines that docs/names.md has a site add are the last; passwords are closed to readers, as Debian does it."""


@attrs.frozen
class Slapd:
    """An LDAP server of the test's own, with and without TLS."""

    folder: Path
    port: int
    tls: int

    @property
    def settings(self) -> dict[str, Any]:
        """Of the site ``one``."""
        return self.of()

    def of(self, site: str = "one", **changes: Any) -> dict[str, Any]:
        plain = {"url": f"ldap://127.0.0.1:{self.port}", "base": BASE, "bind": WRITER, "homes": "/people"}
        return {"ldap": {**plain, "password_file": str(self.folder / "password"), "site": site, **changes}}

    def export(self, site: str, host: str = "127.0.0.1") -> LdapExport:
        """As the drivers of a daemon have it; one by another name of the host has turns of its own, as elsewhere."""
        table = self.of(site, url=f"ldap://{host}:{self.port}")["ldap"]
        return LdapExport(structure(LdapSettings, table, "ldap"))

    def add(self, name: str, classes: list[str], **values: Any) -> None:
        """Somebody else's entry."""
        ldap = importlib.import_module("ldap3")
        with ldap.Connection(ldap.Server(f"ldap://127.0.0.1:{self.port}"), ADMIN, PASSWORD) as link:
            assert link.add(f"{name},{BASE}", classes, values), link.result

    def entries(self, folder: str) -> dict[str, dict[str, list[str]]]:
        """What is in one of the folders, by DN."""
        ldap = importlib.import_module("ldap3")
        with ldap.Connection(ldap.Server(f"ldap://127.0.0.1:{self.port}"), ADMIN, PASSWORD) as link:
            link.search(f"ou={folder},{BASE}", "(objectClass=*)", ldap.LEVEL, attributes=["*"])
            return {
                one["dn"]: {key: [value.decode() for value in values] for key, values in one["raw_attributes"].items()}
                for one in link.response or []
            }

    def all(self) -> list[dict[str, dict[str, list[str]]]]:
        return [self.entries(folder) for folder in ("hosts", "users", "slices")]


def certificate(folder: Path, host: str) -> Path:
    """One for the name of a host, which signs itself; its key is beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    sealed = serialization.NoEncryption()
    form, pem = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    (folder / f"{host}.key").write_bytes(key.private_bytes(pem, form, sealed))
    path = folder / f"{host}.pem"
    path.write_bytes(made.public_bytes(pem))
    return path


@contextmanager
def running_slapd(folder: Path) -> Iterator[Slapd]:
    """A server whose files are in the folder."""
    (folder / "data").mkdir()
    certificate(folder, "localhost")
    words = {"folder": folder, "base": BASE, "admin": ADMIN, "writer": WRITER, "password": PASSWORD}
    (folder / "slapd.conf").write_text(SLAPD.format(**words))
    (folder / "password").touch(mode=0o600)
    (folder / "password").write_text(f"{PASSWORD}\n")
    found = Slapd(folder, *two_free_ports())
    urls = f"ldap://127.0.0.1:{found.port} ldaps://127.0.0.1:{found.tls}"
    command = ["slapd", "-d", "0", "-f", str(folder / "slapd.conf"), "-h", urls]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until("slapd", lambda: _refused(found.port, process) or _refused(found.tls, process))
            ldap = importlib.import_module("ldap3")
            with ldap.Connection(
                ldap.Server(f"ldap://127.0.0.1:{found.port}"), ADMIN, PASSWORD, auto_bind=True
            ) as link:
                assert link.add(BASE, ["dcObject", "organization"], {"dc": "example", "o": "example"}), link.result
                for name in (WRITER, READER):
                    classes = ["organizationalRole", "simpleSecurityObject"]
                    assert link.add(name, classes, {"userPassword": PASSWORD}), link.result
            yield found
        finally:
            process.kill()


def _refused(port: int, process: subprocess.Popen[str]) -> str:
    assert process.poll() is None, process.stderr and process.stderr.read()
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError as error:
        return str(error)
    return ""


def two_free_ports() -> tuple[int, int]:
    """The same for two that are not one."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
