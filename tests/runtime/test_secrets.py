"""No secret gets out: real daemons at level debug, with keys that are known here, and all that they wrote."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_processes import DaemonProcess, Daemons
from runtime_world import request

from leasekit.cli import main
from leasekit.config import keys
from leasekit.config.errors import ConfigErrors
from leasekit.config.identities import KeySource
from leasekit.config.keys import load_key, new_key, rotate
from leasekit.config.load import load
from leasekit.core.claims.signed import ED25519, Keypair
from leasekit.runtime.daemon import make_job
from leasekit.runtime.sockets import Tls

WORDS = "correct horse battery"
WRONG = b"incorrect horse"
DEPLOYMENT = """
[deployment]
name = "secrets"

[actor.site]
role = "authority"
key = { passphrase_file = "pw" }
listen = ["tcp://127.0.0.1:0", "unix:site.sock"]
log_level = "debug"
log = "json"
[[actor.site.inventory]]
type = "vm"
units = 4
prefix = "vm-"
[[actor.site.delegation]]
broker = "broker"
type = "vm"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
log_level = "debug"

[actor.guest]
role = "guest"
listen = ["unix:guest.sock"]
log_level = "debug"
"""
ACTORS = ("site", "broker", "guest")


class Secrets:
    """A state folder whose keys are known, and every form in which one of them could be written down."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "s"
        self.file = folder / "deploy.toml"
        self.file.write_text(DEPLOYMENT)
        (self.state / "keys").mkdir(parents=True, mode=0o700)
        self.state.chmod(0o700)
        (self.state / "pw").write_text(WORDS + "\n")
        (self.state / "pw").chmod(0o600)
        self.pairs = {name: new_key(self.path(name), WORDS.encode() if name == "site" else None) for name in ACTORS}
        self.raw = {name: pair._secret[:32] for name, pair in self.pairs.items()}
        self.forms = {name: list(_forms(secret)) for name, secret in self.raw.items()}
        self.forms["passphrase"] = list(_forms(WORDS.encode()))

    def path(self, name: str) -> Path:
        """Where a key is."""
        return self.state / "keys" / f"{name}.key"

    def found_in(self, data: bytes) -> list[str]:
        """Whose secrets are in ``data``, in whatever form."""
        return [name for name, forms in self.forms.items() if any(form in data for form in forms)]

    def written(self) -> dict[Path, bytes]:
        """All files but those that are to hold secrets."""
        own = {self.path(name) for name in ACTORS} | {self.state / "pw"}
        files = {path for path in self.state.rglob("*") if path.is_file()} - own
        return {path: path.read_bytes() for path in files}


def _forms(secret: bytes) -> Iterator[bytes]:
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield repr(secret)[2:-1].encode()
    yield str(list(secret))[1:-1].encode()
    for shift in range(3):  # base64 at any place in a longer text
        coded = base64.b64encode(b"\0" * shift + secret)
        yield coded[4 if shift else 0 : -4]
        yield base64.urlsafe_b64encode(b"\0" * shift + secret)[4 if shift else 0 : -4]


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    """Known keys in a folder of their own."""
    return Secrets(tmp_path)


def test_the_search_finds_what_it_looks_for(secrets: Secrets) -> None:
    """Each secret is found in its own file, or by what is written in its place: the search is no formality."""
    for name in ("broker", "guest"):
        assert secrets.found_in(secrets.path(name).read_bytes()) == [name]
        coded = base64.b64encode(b"xy" + secrets.raw[name] + b"z")
        assert secrets.found_in(coded) == [name]
    assert secrets.found_in((secrets.state / "pw").read_bytes()) == ["passphrase"]
    assert secrets.found_in(secrets.path("site").read_bytes()) == []


def test_daemons_write_no_secret(secrets: Secrets) -> None:
    """After a lease, a kill, a restart and a stop at level debug, no log, database or output holds a secret."""
    with Daemons(secrets.file, secrets.state) as daemons:
        daemons.start_all()
        lease = daemons.command("guest", "lease.request", **request(2, properties={"deferrable": "true"}))["id"]
        daemons.wait_for("guest", lease, state="active")
        daemons.kill("site")
        daemons.start("site")
        daemons.command("guest", "lease.close", lease=lease)
        answers = [daemons.query(name, "status") for name in ACTORS]
    written = secrets.written()
    assert len(written) >= 9
    assert any(path.suffix == ".db" and len(data) > 10_000 for path, data in written.items())
    assert any(b'"level": "debug"' in data or b"DEBUG" in data for data in written.values())
    assert {path: found for path, data in written.items() if (found := secrets.found_in(data))} == {}
    assert secrets.found_in(repr(answers).encode()) == []


def start_errors(secrets: Secrets) -> list[str]:
    """What is wrong with the deployment when it is to be started."""
    with pytest.raises(ConfigErrors) as raised:
        load(secrets.file, secrets.state)
    return [*str(raised.value).splitlines()]


def test_what_goes_wrong_tells_no_secret(secrets: Secrets, capfd: pytest.CaptureFixture[str]) -> None:
    """Wrong passphrases, damaged, misplaced and open key files: daemons and commands say what is wrong, not the key."""
    said = []
    guest, broker = secrets.path("guest"), secrets.path("broker")
    (secrets.state / "pw").write_text(WORDS + "!\n")
    process = DaemonProcess(secrets.file, secrets.state, "site")
    assert process.wait() == 1
    assert "actor.site.key: found another passphrase than that of" in process.said()
    said.append(process.said())
    damage = {guest: guest.read_text(), broker: broker.read_text()}
    guest.write_text(damage[guest].strip() + "0\n")
    broker.chmod(0o644)
    (line, other) = start_errors(secrets)
    assert "actor.broker.key: found" in line + other
    assert "actor.guest.key: found" in line + other
    said += [line, other]
    wrong = secrets.state / "wrong.toml"
    for key in (damage[guest].strip(), damage[guest].split()[1], f'{WORDS}"\nx = "{secrets.raw["guest"].hex()}'):
        wrong.write_text(f'[actor.guest]\nrole = "guest"\nkey = "{key}"\n[peer.b]\nrole = "broker"\nkey = "{key}"\n')
        main.run(["config", "check", str(wrong)])
    wrong.unlink()
    for arguments in (["show", str(guest)], ["show", str(broker)], ["new", str(guest)], ["rotate", str(guest)]):
        assert main.run(["keys", *arguments]) == 1
    main.run(["keys", "show", "--file", str(secrets.file), "--state", str(secrets.state)])
    captured = capfd.readouterr()
    said += [captured.out, captured.err]
    shown = [text for text in said if "'x'" not in text]
    assert len("".join(shown)) > 500
    assert secrets.found_in("".join(said).encode()) == []


def test_no_object_shows_its_secret(secrets: Secrets) -> None:
    """Neither repr nor a traceback with all local variables shows what a key, a job or a deployment holds."""
    deployment = load(secrets.file, secrets.state)
    publics = {name: pair.public for name, pair in secrets.pairs.items()}
    source = KeySource(ED25519, secrets.pairs.__getitem__, publics.__getitem__)
    job = make_job(deployment, "guest", source)
    tls = Tls(secrets.pairs["site"], "site")
    made = rotate(secrets.path("guest"), "guest", 0, 1)
    things = [deployment, source, job, job.make(), tls, tls.server([]), made, *secrets.pairs.values()]
    try:
        raise RuntimeError(*things)
    except RuntimeError as error:
        shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    text = " ".join(map(repr, things)) + " ".join(repr(getattr(thing, "__dict__", "")) for thing in things) + shown
    assert "<Keypair" in text
    assert [name for name in secrets.found_in(text.encode()) if name != "passphrase"] == []


def test_a_wrong_passphrase_is_not_logged(secrets: Secrets, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the right nor a wrong passphrase is in the error, in what caused it, or in any log."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(keys.KeyFileLocked) as raised:
        load_key(secrets.path("site"), lambda: WRONG)
    text = "".join(traceback.format_exception(raised.value)) + caplog.text
    assert "horse" not in text
    assert secrets.found_in(text.encode()) == []


def test_the_tls_key_is_not_the_actors() -> None:
    """A TLS connection is made with a key of the process: the actor's own is not given to it, and two differ."""
    pair = Keypair(b"k" * 32)
    one, two = Tls(pair, "site"), Tls(pair, "site")
    assert one._key.private_bytes_raw() != b"k" * 32
    assert one._key.private_bytes_raw() != two._key.private_bytes_raw()
    assert pair.public not in one.certificate
