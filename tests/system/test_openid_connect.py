"""Who calls is known by a real OpenID Connect provider: the device flow, groups, and tokens that are not believed."""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cli_daemons import running, site_and_broker
from joserfc import jwt
from joserfc.jwk import RSAKey
from openid_provider import CLIENT, OpenIdProvider, free_port, provider
from packages import OPENID, require

from leasekit.config.gateway import OidcTable
from leasekit.gateway.oidc import OpenIdKeys
from leasekit.gateway.problems import ProblemError


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    """The provider."""
    require(OPENID)
    with provider(tmp_path_factory.mktemp("provider")) as made:
        yield made


def test_a_device_logs_in(lab: OpenIdProvider, tmp_path: Path) -> None:
    """Somebody agrees at the provider; from then on commands with that --url are theirs, as far as their groups may."""
    address = f"http://127.0.0.1:{free_port()}"
    file = tmp_path / "leasekit.toml"
    table = f'[actor.web]\nrole = "gateway"\nlisten = ["{address}"]\n[actor.web.oidc]\nissuer = "{lab.issuer}"\n'
    table += f'client_id = "{CLIENT}"\nscopes = "openid lab"\n[actor.web.oidc.groups]\nlab-users = ["alpha:user"]\n'
    file.write_text(site_and_broker('inventory = [{ type = "vm", units = 2 }]\n' + table, "alpha", "beta"))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    words = [sys.executable, "-m", "leasekit.cli.main"]
    with running(file):
        line = [*words, "login", "--url", address]
        with subprocess.Popen(
            line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as login:
            assert login.stderr is not None
            told = login.stderr.readline()
            lab.allow("ada", re.findall(r"\(code (.*)\)", told)[0])
            out, err = login.communicate(timeout=60)
        assert login.returncode == 0, err
        kept = tmp_path / "state" / "leasekit" / "logins.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert re.fullmatch(rf"oidc:\S+: kept in {kept}\n", out)
        done = subprocess.run(
            [*words, "lease", "list", "--url", address, "--actor", "alpha"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        token = json.loads(kept.read_text())[address]
        with httpx.Client(base_url=f"{address}/api/v1", headers={"authorization": f"Bearer {token}"}) as client:
            me = client.get("/me").json()
            assert (me["way"], me["projects"], me["offices"]) == ("OpenID Connect", {"alpha": "user"}, [])
            assert client.get("/leases", params={"project": "beta"}).status_code == 404
            assert token not in file.with_suffix(".log").read_text()
            assert client.get("/me", headers={"authorization": f"Bearer {token[:-6]}AAAAAA"}).status_code == 401
            assert client.get("/me", params={"access_token": token}, headers={"authorization": ""}).status_code == 401


def test_a_local_user_logs_in(tmp_path: Path) -> None:
    """By name and password, where no provider is believed; commands with that --url are the user's from then on."""
    address, file, secret = f"http://127.0.0.1:{free_port()}", tmp_path / "leasekit.toml", tmp_path / "password"
    table = f'[actor.web]\nrole = "gateway"\nlisten = ["{address}"]\n'
    file.write_text(site_and_broker(table, "alpha", "beta"))
    secret.write_text("correct horse battery")
    secret.chmod(0o600)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def run(*words: str, status: int = 0) -> str:
        line = [sys.executable, "-m", "leasekit.cli.main", *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    password = ("--password-file", str(secret))
    with running(file):
        run("user", "add", "ada", "--project", "alpha:user", *password, "--file", str(file))
        assert "say a local user by --user" in run("login", "--url", address, status=1)
        assert run("login", "--url", address, "--user", "ada", *password).startswith("ada: kept in ")
        run("lease", "list", "--url", address, "--actor", "alpha")
        secret.write_text("another password")
        assert "no user of that name with that password" in run(
            "login", "--url", address, "--user", "ada", *password, status=1
        )
        run("user", "remove", "ada", "--file", str(file))
        assert "the token is not one of this gateway's" in run("lease", "list", "--url", address, status=1)
    assert "no gateway answers there" in run("login", "--url", address, "--user", "ada", *password, status=1)


def encoded(part: object) -> str:
    """A part of a JWT."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


async def test_what_is_not_believed(lab: OpenIdProvider) -> None:
    """Another key, another audience, no signature, the public key as a secret, and a time that is over."""
    table = OidcTable(issuer=lab.issuer, client_id=CLIENT, groups={"lab-users": ("alpha:user", "auditor")})
    keys, token = OpenIdKeys(table), lab.id_token("ada")
    claims = jwt.decode(token, lab.keys(), algorithms=["RS256"]).claims
    header, now = jwt.decode(token, lab.keys(), algorithms=["RS256"]).header, claims["iat"] * 1_000
    caller = await keys.caller(token, now)
    assert caller is not None
    assert (caller.name, dict(caller.projects), caller.offices) == (
        f"oidc:{claims['sub']}",
        {"alpha": "user"},
        {"auditor"},
    )
    assert await keys.caller(token, claims["exp"] * 1_000 + 61_000) is None
    other = RSAKey.generate_key(2048, {"kid": header["kid"]})
    assert await keys.caller(jwt.encode(header, claims, other), now) is None
    unknown = RSAKey.generate_key(2048, {"kid": "unknown"})
    assert await keys.caller(jwt.encode({"alg": "RS256", "kid": "unknown"}, claims, unknown), now + 61_000) is None
    public = lab.keys().keys[0].as_pem(private=False)
    body = encoded(claims)
    for alg in ("HS256", "none", "RS256", ["RS256"], None, 7):
        for kid in (header["kid"], None, ["x"], {}, 7):
            forged = f"{encoded({'alg': alg, 'kid': kid})}.{body}"
            signature = base64.urlsafe_b64encode(hmac.digest(public, forged.encode(), "sha256")).rstrip(b"=").decode()
            for end in (signature, ""):
                assert await keys.caller(f"{forged}.{end}", now) is None
    for odd in ("..", "a.b.c", f"{encoded(['RS256'])}.{body}.", f"{encoded({})}.{body}.", "\u00e9.\u00e9.\u00e9"):
        assert await keys.caller(odd, now) is None
    for wrong in (
        OidcTable(issuer=lab.issuer, client_id="another"),
        OidcTable(issuer=lab.issuer, client_id=CLIENT, algorithms=("ES256",)),
        OidcTable(issuer=lab.issuer, client_id=CLIENT, name="email"),
    ):
        assert await OpenIdKeys(wrong).caller(token, now) is None
    for elsewhere in (f"{lab.issuer}/", f"{lab.url}/nothing"):
        with pytest.raises(ProblemError) as away:
            await OpenIdKeys(OidcTable(issuer=elsewhere, client_id=CLIENT)).caller(token, now)
        assert away.value.status == 503
