"""``role = "gateway"`` in a deploy file: what it says, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.config.errors import ConfigErrors
from leasekit.config.load import load

ACTORS = """
[deployment]
create_keys = true
[actor.broker]
role = "broker"
[actor.guest]
role = "guest"
"""


def read(tmp_path: Path, table: str, actors: str = ACTORS) -> list[str]:
    """What is wrong with a file that has this table of a gateway."""
    file = tmp_path / "leasekit.toml"
    file.write_text(f'{actors}\n[actor.web]\nrole = "gateway"\n{table}')
    try:
        load(file)
    except ConfigErrors as errors:
        return [str(error).removeprefix(f"{file}: ") for error in errors.errors]
    return []


def test_a_gateway_is_no_actor(tmp_path: Path) -> None:
    """It has a control socket and a store, and stands apart from the actors."""
    assert read(tmp_path, "") == []
    deployment = load(tmp_path / "leasekit.toml")
    assert list(deployment.actors) == ["broker", "guest"]
    assert list(deployment.daemons) == ["broker", "guest", "web"]
    spec = deployment.gateways["web"]
    assert (spec.listen, spec.table.without_login, spec.table.base) == (("127.0.0.1:8770",), False, "")
    assert (spec.control.name, spec.store and spec.store.name) == ("web.control.sock", "web.db")


@pytest.mark.parametrize(("written", "read_from"), [("", ""), ('password_file = "secret"', "{state}/secret")])
def test_a_password_of_the_mail_server_is_in_the_state_directory(tmp_path: Path, written: str, read_from: str) -> None:
    """Where its file is named at all."""
    assert read(tmp_path, f'[actor.web.mail]\nserver = "mail:25"\nsender = "a@lab.example"\n{written}') == []
    deployment = load(tmp_path / "leasekit.toml")
    mail = deployment.gateways["web"].table.mail
    assert mail is not None and mail.password_file == read_from.format(state=deployment.state)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('issuer = "http://id.lab.example"', "actor.web.oidc.issuer: found 'http://id.lab.example'"),
        ('issuer = "http://127.0.0.1.lab.example"', "actor.web.oidc.issuer: found 'http://127.0.0.1.lab.example'"),
        ('issuer = "https://id"\nalgorithms = ["HS256"]', "actor.web.oidc.algorithms[0]: found 'HS256'"),
        ('issuer = "https://id"\nalgorithms = ["none"]', "actor.web.oidc.algorithms[0]: found 'none'"),
        ('issuer = "https://id"\ngroups = { lab = ["guest:king"] }', "actor.web.oidc.groups: found"),
    ],
)
def test_a_provider_is_named_safely(tmp_path: Path, line: str, fault: str) -> None:
    """By https, with algorithms that have a public key, and roles that there are."""
    (found,) = read(tmp_path, f'[actor.web.oidc]\nclient_id = "leasekit"\n{line}')
    assert found.startswith(fault)


@pytest.mark.parametrize("listen", ["http://0.0.0.0:8770", "http://[::]:8770", "http://192.0.2.1:80", "http://lab:80"])
def test_a_gateway_without_login_is_for_this_machine(tmp_path: Path, listen: str) -> None:
    """Where others can reach it callers must show a token."""
    (fault,) = read(tmp_path, f'listen = ["{listen}"]\nwithout_login = true')
    assert fault.startswith(f"actor.web.listen[0]: found '{listen}', which others can reach, expected a loopback")
    assert read(tmp_path, f'listen = ["{listen}"]') == []
    own = '["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:2", "unix:web.http"]'
    assert read(tmp_path, f'listen = {own}\nwithout_login = true\nhosts = ["lab.example", "[::1]"]') == []
    (fault,) = read(tmp_path, 'hosts = ["lab.example:80"]')
    assert fault.startswith("actor.web.hosts: found a list, but expected names of hosts"), fault


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('listen = ["tcp://127.0.0.1:1"]', "actor.web.listen[0]: found 'tcp://127.0.0.1:1', expected http://HOST:PORT"),
        ('listen = ["http://127.0.0.1:99999"]', "actor.web.listen[0]: found 'http://127.0.0.1:99999'"),
        ('blazar = { site = "sight", type = "host" }', "actor.web.blazar.site: found 'sight', which is no site"),
        ('blazar = { site = "sight" }', "actor.web.blazar.type: found nothing, expected text"),
        ("logins_per_minute = 0", "actor.web.logins_per_minute: found 0, but expected 1 to 1,000"),
        ("listen = []", "actor.web.listen: found nothing, expected http://HOST:PORT"),
        ('base = "leasekit/"', "actor.web.base: found 'leasekit/'"),
        ('key = "keys/web.key"', "actor.web.key: found a key of [actor.NAME] of guests, "),
        ('store = "postgres"', "actor.web.store: found 'postgres', expected memory or sqlite:PATH"),
        ('control = "broker.control.sock"', "actor.web.control: found unix:"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, table: str, fault: str) -> None:
    """With the key, what was found, and what is allowed."""
    (found,) = read(tmp_path, table)
    assert found.startswith(fault)


def test_a_gateway_needs_actors_beside_it(tmp_path: Path) -> None:
    """A file with a gateway alone opens nothing."""
    assert read(tmp_path, "", "[deployment]") == [
        "actor.web: found no actor beside it, expected the actors that it is the door of in the same file"
    ]
