"""A real OpenID Connect provider for tests: Debian's glewlwyd, with a client, users in groups, and the device flow."""

from __future__ import annotations

import gzip
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc.jwk import KeySet
from polling import PATIENCE

from leasekit.client.logins import device_login

DOCUMENTS = Path("/usr/share/doc/glewlwyd/database/init.sqlite3.sql.gz")
LIBRARIES = "/usr/lib/glewlwyd"
CONFIGURATION = """
port = {port}
bind_address = "127.0.0.1"
external_url = "http://127.0.0.1:{port}/"
login_url = "login.html"
api_prefix = "api"
log_mode = "console"
log_level = "INFO"
cookie_secure = false
user_module_path = "{lib}/user"
client_module_path = "{lib}/client"
user_auth_scheme_module_path = "{lib}/scheme"
plugin_module_path = "{lib}/plugin"
hash_algorithm = "SHA512"
database = {{ type = "sqlite3"; path = "{store}"; }};
"""
PASSWORD = "correct horse battery"
CLIENT = "leasekit"
SCOPES = "openid lab"


def rsa_keys() -> tuple[str, str]:
    """A new private key and its public one, as PEM."""
    key = rsa.generate_private_key(65_537, 2_048)
    kind = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return private.decode(), key.public_key().public_bytes(serialization.Encoding.PEM, spki).decode()


@attrs.frozen
class OpenIdProvider:
    """One that runs."""

    port: int

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def issuer(self) -> str:
        """Its name, below which its document is."""
        return f"{self.url}/api/oidc"

    @contextmanager
    def session(self, name: str, password: str = PASSWORD) -> Iterator[httpx.Client]:
        """A browser in which somebody has logged in."""
        with httpx.Client(base_url=f"{self.url}/api", timeout=30) as browser:
            browser.post("/auth/", json={"username": name, "password": password}).raise_for_status()
            yield browser

    def allow(self, name: str, code: str) -> None:
        """Somebody grants what a device asks for."""
        with self.session(name) as browser:
            browser.put(f"/auth/grant/{CLIENT}", json={"scope": SCOPES}).raise_for_status()
            answer = browser.get("/oidc/device", params={"code": code, "g_continue": ""})
            assert answer.status_code == 302, answer.text
            assert "prompt=deviceComplete" in answer.headers["location"], answer.headers["location"]

    def id_token(self, name: str) -> str:
        """The ID token that a device is given for somebody."""
        return device_login(self.issuer, CLIENT, SCOPES, lambda _, code: self.allow(name, code))

    def keys(self) -> KeySet:
        """The keys that it publishes."""
        return KeySet.import_key_set(httpx.get(f"{self.issuer}/jwks").json())


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def provider(folder: Path) -> Iterator[OpenIdProvider]:
    """One with its data in ``folder``."""
    port = free_port()
    store, configuration = folder / "glewlwyd.db", folder / "glewlwyd.conf"
    with sqlite3.connect(store) as database:
        database.executescript(gzip.decompress(DOCUMENTS.read_bytes()).decode())
    configuration.write_text(CONFIGURATION.format(port=port, lib=LIBRARIES, store=store))
    log = folder / "glewlwyd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(["glewlwyd", f"--config-file={configuration}"], stdout=output, stderr=output)
    made = OpenIdProvider(port)
    try:
        _until_it_listens(process, port, log)
        _set_up(made)
        yield made
    finally:
        process.terminate()
        process.wait(timeout=30)


def _until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def _set_up(made: OpenIdProvider) -> None:
    private, public = rsa_keys()
    with made.session("admin", "password") as admin:

        def ask(method: str, path: str, body: dict[str, object]) -> None:
            answer = admin.request(method, path, json=body)
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"

        users = admin.get("/mod/user/database").json()
        users["parameters"]["data-format"]["groups"] = {"multiple": True, "read": True, "write": True}
        ask("PUT", "/mod/user/database", users)
        answer = admin.put("/mod/user/database/reset")
        assert answer.status_code == 200, answer.text
        ask("POST", "/scope", {"name": "lab", "display_name": "lab", "password_required": True, "password_max_age": 0})
        ask("POST", "/mod/plugin", {"module": "oidc", "name": "oidc", "display_name": "oidc", "parameters": {
            "iss": made.issuer, "jwt-type": "rsa", "jwt-key-size": "256", "key": private, "cert": public,
            "access-token-duration": 3600, "refresh-token-duration": 86400, "code-duration": 600,
            "refresh-token-rolling": False, "allow-non-oidc": True,
            "auth-type-code-enabled": True, "auth-type-token-enabled": False, "auth-type-id-token-enabled": True,
            "auth-type-none-enabled": False, "auth-type-password-enabled": False, "auth-type-client-enabled": False,
            "auth-type-refresh-enabled": True, "auth-type-device-enabled": True,
            "device-authorization-expiration": 600, "device-authorization-interval": 1,
            "pkce-allowed": True, "pkce-method-plain-allowed": False, "pkce-required": False,
            "subject-type": "public", "jwks-show": True, "oauth-as-iss-id": True,
            "introspection-revocation-allowed": False, "register-client-allowed": False,
            "session-management-allowed": False,
            "claims": [{
                "name": "groups", "user-property": "groups", "type": "string", "mandatory": True, "on-demand": False,
            }],
        }})  # fmt: skip
        ask("POST", "/client", {
            "client_id": CLIENT, "name": CLIENT, "confidential": False, "enabled": True, "scope": [],
            "authorization_type": ["code", "id_token", "device_authorization"],
            "redirect_uri": ["https://lab.example/callback"],
            "source": "database",
        })  # fmt: skip
        for name, groups in (("ada", ["lab-users"]), ("olga", ["lab-admins", "lab-users"]), ("eve", [])):
            ask("POST", "/user", {
                "username": name, "password": PASSWORD, "scope": ["openid", "lab", "g_profile"], "groups": groups,
                "enabled": True, "source": "database", "name": name,
            })  # fmt: skip
