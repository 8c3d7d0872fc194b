"""Deploy files: what they come to, and that every fault in one is found, all of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy_texts import SMALL, SMALL_FILE, changed, faults, write
from hypothesis import given
from hypothesis import strategies as st

from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, UnitGroup
from leasekit.config.errors import ConfigErrors
from leasekit.config.load import check, load
from leasekit.core.time import DAY, MINUTE, SECOND

FOLLOWING = """
[actor.guest.mapper]
name = "load_following"
type = "vm"
term = "1h"
signal = { synthetic = {}, peak = 4 }
"""


# -- what a file comes to ------------------------------------------------------------------------------------------


def test_a_small_deployment(tmp_path: Path) -> None:
    """Every key that is given, and every default, ends where it should."""
    path = write(tmp_path)
    deployment = load(path)
    state = tmp_path / "state"
    assert (deployment.name, deployment.file, deployment.state) == ("small", path, state)
    assert deployment.create_keys
    assert deployment.signatures
    assert list(deployment.actors) == ["site", "broker", "guest"]
    site = deployment.actors["site"]
    assert site.listen == (f"unix:{state}/site.sock", "tcp://127.0.0.1:7301")
    assert (site.key, site.control, site.store) == (
        state / "keys/site.key",
        state / "site.control.sock",
        state / "site.db",
    )
    assert isinstance(site.settings, AuthoritySettings)
    names = ("vm-0", "vm-1", "vm-2", "vm-3")
    assert site.settings.inventory == (UnitGroup(type="vm", names=names, properties={"memory_mb": "2048"}),)
    assert site.settings.delegations == (DelegationSpec(broker="broker", type="vm", units=4, length=30 * DAY),)
    assert isinstance(deployment.actors["broker"].settings, BrokerSettings)
    assert deployment.actors["broker"].settings.priorities == {"guest": 10}
    assert [actor.mapper.target for actor in deployment.actors.values()] == ["first_fit", "fcfs", "manual"]
    assert [actor.name for actor in deployment.of_role("guest")] == ["guest"]


def test_settings_of_a_role(tmp_path: Path) -> None:
    """Durations may be text or milliseconds; what is not given keeps its default."""
    text = SMALL + '[actor.guest.settings]\nredeem_lead = "90s"\nretry_first = 5\ndefault_broker = "broker"\n'
    settings = load(write(tmp_path, text)).actors["guest"].settings
    assert settings == GuestSettings(redeem_lead=90 * SECOND, retry_first=5, default_broker="broker")


def test_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument goes before the environment, the environment before the file, a folder named after it is the
    default.
    """
    path = write(tmp_path)
    nameless = write(tmp_path, changed(('state = "state"\n', "")), "nameless.toml")
    assert load(nameless).state == tmp_path / "run" / "small"
    monkeypatch.setenv("LEASEKIT_STATE", str(tmp_path / "environment"))
    assert load(path).state == tmp_path / "environment"
    assert load(path, tmp_path / "argument").state == tmp_path / "argument"
    monkeypatch.chdir(tmp_path)
    assert load(path, Path("here")).actors["site"].key == tmp_path / "here/keys/site.key"


def test_loading_makes_nothing(tmp_path: Path) -> None:
    """No folder, key, socket or store comes to be."""
    load(write(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["deploy.toml"]


def test_named_units_and_several_groups(tmp_path: Path) -> None:
    """Groups of one type add up; named units keep their names; a delegation without units takes all."""
    more = '[[actor.site.inventory]]\ntype = "big"\nnames = ["atlas", "kronos"]\n'
    more += '[[actor.site.inventory]]\ntype = "big"\nunits = 2\nprefix = "b"\n'
    more += '[[actor.site.delegation]]\nbroker = "broker"\ntype = "big"\ndegree = 1.5\n'
    settings = load(write(tmp_path, SMALL + more)).actors["site"].settings
    assert isinstance(settings, AuthoritySettings)
    assert [group.names for group in settings.inventory[1:]] == [("atlas", "kronos"), ("b0", "b1")]
    assert settings.delegations[1] == DelegationSpec(broker="broker", type="big", units=0, degree=1500)


def test_which_driver_serves_which_type(tmp_path: Path) -> None:
    """The inventory's word goes first, then the drivers' types, then the only driver there is; else a null driver."""
    text = changed(("units = 4\nproperties", 'driver = "a"\nunits = 4\nproperties'))
    text += '[[actor.site.inventory]]\ntype = "x"\nunits = 1\n[[actor.site.inventory]]\ntype = "y"\nunits = 1\n'
    text += (
        '[actor.site.driver.a]\nkind = "null"\ntypes = ["vm"]\n[actor.site.driver.b]\nkind = "null"\ntypes = ["x"]\n'
    )
    text += '[actor.site.driver.c]\nkind = "null"\nlatency = { setup = "2s" }\ntimeout = "5m"\nretries = 1\n'
    text += '[actor.guest.driver.g]\nkind = "null"\ntypes = ["vm"]\n'
    deployment = load(write(tmp_path, text))
    site, guest = deployment.actors["site"], deployment.actors["guest"]
    assert site.driver_of == {"vm": "a", "x": "b", "y": "c"}
    assert (site.other_types, guest.driver_of, guest.other_types) == ("", {"vm": "g"}, "null")
    spec = site.drivers["c"]
    assert (spec.timeout, spec.retries, spec.concurrency) == (5 * MINUTE, 1, 16)
    assert site.drivers["a"].emulated.seed != site.drivers["b"].emulated.seed
    assert load(write(tmp_path)).actors["site"].driver_of == {"vm": "null"}


def test_peers_of_other_files(tmp_path: Path) -> None:
    """Paths of keys and sockets start at the state folder; an address may be left out."""
    text = '[actor.guest]\nrole = "guest"\n[deployment]\nstate = "s"\n'
    text += '[peer.broker]\nrole = "broker"\nkey = "keys/broker.pub"\naddress = "unix:b.sock"\n'
    text += f'[peer.site]\nrole = "authority"\nkey = "{"ab" * 32}"\n'
    peers = load(write(tmp_path, text)).peers
    assert peers["broker"].key == str(tmp_path / "s/keys/broker.pub")
    assert peers["broker"].address == f"unix:{tmp_path}/s/b.sock"
    assert (peers["site"].key, peers["site"].address) == ("ab" * 32, "")


def test_overrides(tmp_path: Path) -> None:
    """Dotted keys replace values, list items by index; tables that are missing are made; the document stays as it
    was.
    """
    path = write(tmp_path)
    deployment = load(path)
    other = deployment.with_overrides(
        {"actor.site.inventory.0.units": 6, "actor.guest.settings.redeem_lead": "7s", "deployment.name": "other"}
    )
    assert (deployment.name, other.name) == ("small", "other")
    site, guest = other.actors["site"].settings, other.actors["guest"].settings
    assert isinstance(site, AuthoritySettings)
    assert isinstance(guest, GuestSettings)
    assert (len(site.inventory[0].names), guest.redeem_lead) == (6, 7 * SECOND)
    again = other.with_overrides({"actor.site.inventory.0.units": 5})
    assert (again.name, len(again.actors["site"].settings.inventory[0].names)) == ("other", 5)  # type: ignore[attr-defined]
    assert load(path, overrides={"deployment.name": "other"}).name == "other"
    assert deployment.with_overrides({}) is deployment


@pytest.mark.parametrize("key", ["actor.site.inventory.1.units", "deployment.name.x", "actor.site.inventory.vm.units"])
def test_overrides_that_lead_nowhere(tmp_path: Path, key: str) -> None:
    """They are errors that name the key."""
    with pytest.raises(ConfigErrors, match="leads nowhere") as raised:
        load(write(tmp_path)).with_overrides({key: 3})
    assert raised.value.errors[0].key == key


def test_a_wrong_value_in_an_override(tmp_path: Path) -> None:
    """It is found as if it were in the file."""
    with pytest.raises(ConfigErrors, match=r"actor.site.inventory\[0\].units: found 'six', expected a whole number"):
        load(write(tmp_path)).with_overrides({"actor.site.inventory.0.units": "six"})


def test_signals(tmp_path: Path) -> None:
    """A signal's keys become a spec whose horizon and seed are the emulation's; instants may be dates of TOML."""
    text = SMALL + FOLLOWING.replace(
        "{ synthetic = {}, peak = 4 }",
        '{ file = "a/b.csv.gz", column = "requests", start = 1998-06-11T22:00:00Z, peak = 140, origin = "2026-01-01" }',
    )
    text += '[emulation]\nhorizon = "10d"\nseed = 7\n'
    signal = load(write(tmp_path, text)).actors["guest"].mapper.signal
    assert signal is not None
    assert (signal.file, signal.column, signal.start) == ("a/b.csv.gz", "requests", 897_602_400_000)
    assert (signal.horizon, signal.peak, signal.origin) == (10 * DAY, 140.0, 1_767_225_600_000)
    other = load(write(tmp_path, text.replace("seed = 7", "seed = 8"))).actors["guest"].mapper.signal
    assert other is not None
    assert other.seed != signal.seed


def test_a_mapper_in_a_file(tmp_path: Path) -> None:
    """It is looked for from the deploy file's folder, wherever the command is run."""
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def allocate(self, cycle):\n        return []\n", encoding="utf-8"
    )
    text = SMALL + '[actor.broker.mapper]\nname = "mine.py:Mine"\n'
    assert load(write(tmp_path, text)).actors["broker"].mapper.target == f"{tmp_path}/mine.py:Mine"


# -- faults --------------------------------------------------------------------------------------------------------


def test_all_faults_at_once(tmp_path: Path) -> None:
    """One load names every fault of a file that has many, each with its key, what was found and what is allowed."""
    text = changed(
        ('name = "small"', 'nmae = "small"'),
        ('role = "guest"', 'role = "gest"'),
        ("units = 4\nlength", "units = 5\nlength"),
        ('length = "30d"', 'length = "30 days"'),
        ('broker = "broker"', 'broker = "borker"'),
        ("guest = 10", 'guest = "10"'),
        ('memory_mb = "2048"', "memory_mb = 2048"),
    )
    found = faults(write(tmp_path, text + "[actors.x]\n"))
    assert set(found) == {
        "actors",
        "deployment.nmae",
        "actor.guest.role",
        "actor.site.delegation[0].length",
        "actor.broker.priorities.guest",
        "actor.site.inventory[0].properties.memory_mb",
    }
    assert "did you mean actor?" in found["actors"]
    assert "did you mean name?" in found["deployment.nmae"]
    assert found["actor.guest.role"] == "found 'gest', expected one of: 'guest', 'broker', 'authority', 'gateway'"
    assert "such as 90s or 1h30m" in found["actor.site.delegation[0].length"]


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ('role = "guest"', "", "actor.guest.role", "found nothing, expected one of: 'guest'"),
        ('role = "guest"', 'role = "guest"\ninventory = []', "actor.guest.inventory", "[actor.NAME] of role authority"),
        ('role = "guest"', 'role = "guest"\nlog = "xml"', "actor.guest.log", "'human', 'json'"),
        ('role = "guest"', 'role = "guest"\nlog_level = "trace"', "actor.guest.log_level", "'debug'"),
        ('role = "guest"', 'role = "guest"\nstore = "postgres:x"', "actor.guest.store", "memory or sqlite:PATH"),
        ('role = "guest"', 'role = "guest"\nstore = "sqlite:"', "actor.guest.store", "memory or sqlite:PATH"),
        ('role = "guest"', 'role = "guest"\nstore = "sqlite:site.db"', "actor.guest.store", "actor.site.store has"),
        ('role = "guest"', 'role = "guest"\nkey = "keys/site.key"', "actor.guest.key", "actor.site.key has"),
        ('role = "guest"', f'role = "guest"\nkey = "{"5e" * 32}"', "actor.guest.key", "looks like a key itself"),
        ('role = "guest"', 'role = "guest"\nlisten = ["unix:site.sock"]', "actor.guest.listen[0]", "listen[0] has"),
        ('role = "guest"', 'role = "guest"\ncontrol = "site.sock"', "actor.guest.control", "actor.site.listen[0] has"),
        ('role = "guest"', 'role = "guest"\nmetrics = "x:1"\nlisten = ["tcp://x:1"]', "actor.guest.listen[0]",
         "actor.guest.metrics has"),
        ('role = "guest"', 'role = "guest"\nmetrics = "127.0.0.1:1"\n[actor.web]\nrole = "gateway"\nlisten = '
         '["http://127.0.0.1:1"]\nwithout_login = true', "actor.web.listen[0]", "actor.guest.metrics has"),
        ('role = "guest"', 'role = "guest"\n[actor.web]\nrole = "gateway"\nlisten = ["unix:site.sock"]',
         "actor.web.listen[0]", "actor.site.listen[0] has"),
        ('role = "guest"', 'role = "guest"\nlisten = ["http://x:1"]', "actor.guest.listen[0]", "unix:PATH or tcp://"),
        ('role = "guest"', 'role = "guest"\nlisten = ["tcp://x:70000"]', "actor.guest.listen[0]", "tcp://HOST:PORT"),
        ('role = "guest"', 'role = "guest"\nlisten = "unix:x"', "actor.guest.listen", "a list of text in quotes"),
        ("guest = 10", "geust = 10", "actor.broker.priorities.geust", "did you mean guest?"),
        ("guest = 10", "site = 10", "actor.broker.priorities.site", "no guest here"),
        ("units = 4\nprop", "units = -1\nprop", "actor.site.inventory[0].units", "found -1, expected >= 0"),
        ("units = 4\nprop", "units = 4.5\nprop", "actor.site.inventory[0].units", "a whole number"),
        ("units = 4\nprop", 'units = 4\nprefix = "../"\nprop', "actor.site.inventory[0].prefix", "letters, digits"),
        ("units = 4\nprop", 'units = 4\ndriver = "x"\nprop', "actor.site.inventory[0].driver", "no driver here"),
        ("units = 4\nprop", 'units = 4\nnames = ["a"]\nprop', "actor.site.inventory[0]", "both of units and names"),
        ("units = 4\nprop", "prop", "actor.site.inventory[0]", "neither of units and names"),
        ("units = 4\nlength", "units = 5\nlength", "actor.site.delegation",
         "found 5 units of 'vm' in all, expected at most 4"),
        ("units = 4\nlength", "units = 0\nlength", "actor.site.delegation[0].units", ">= 1"),
        ("units = 4\nlength", "degree = 0.5\nlength", "actor.site.delegation[0].degree", ">= 1.0"),
        ("units = 4\nlength", 'renew = "30d"\nlength', "actor.site.delegation[0].renew", "less than length"),
        ("units = 4\nlength", 'renew = 0\nlength', "actor.site.delegation[0].renew", ">= 1"),
        ("units = 4\nlength", 'renew_for = "1d"\nlength', "actor.site.delegation[0].renew_for", "renew beside it"),
        ('broker = "broker"', 'broker = "guest"', "actor.site.delegation[0].broker", "no broker here"),
        ("[actor.broker]", '[actor."a/b"]', "actor.a/b", "letters, digits, dots"),
        ('state = "state"', "state = 3", "deployment.state", "text in quotes"),
        ("create_keys = true", "signatures = false", "deployment.signatures", "only an emulation"),
    ],
)  # fmt: skip
def test_single_faults(tmp_path: Path, old: str, new: str, key: str, words: str) -> None:
    """Each is found under its key, in words that say what is allowed."""
    found = faults(write(tmp_path, changed((old, new))))
    assert key in found, found
    assert words in found[key]


def test_a_delegation_that_is_renewed(tmp_path: Path) -> None:
    """When, and for how long: as long as before if the file doesn't say."""
    specs = []
    for more in ('renew = "2d"', 'renew = "2d"\nrenew_for = "7d"'):
        site = load(write(tmp_path, changed(("units = 4\nlength", f"units = 4\n{more}\nlength")))).actors["site"]
        assert isinstance(site.settings, AuthoritySettings)
        specs += site.settings.delegations
    assert [(spec.renew, spec.period) for spec in specs] == [(2 * DAY, 30 * DAY), (2 * DAY, 7 * DAY)]


@pytest.mark.parametrize(
    ("table", "key", "homes"),
    [
        ("actor.broker.shell", 'retry_first = "5s"', "[actor.broker.settings]"),
        ("actor.guest.settings", 'heartbeat = "5s"', "[actor.guest.transport]"),
        ("actor.broker.settings", 'balance = "best_fit"', "[actor.broker.mapper]"),
        ("actor.broker.mapper", "kept_bytes = 7", "[actor.broker.settings]"),
        ("actor.site.permissions.guest", 'type = "vm"', "[[actor.site.inventory]] or [[actor.site.delegation]]"),
        ("actor.site.settings", "retries = 1", "[actor.site.driver.DRIVER]"),
        ("actor.site.settings", 'directory = "x"\n[actor.site.driver.x]\nkind = "process"', "[actor.site.driver.x]"),
        ("actor.guest.settings", "pending_max = 5", "[actor.NAME.settings] of role broker"),
        ("actor.site.settings", "create_keys = true", "[deployment]"),
        ("actor.web", 'role = "gateway"\nserver = "m:25"', "[actor.web.mail]"),
        ("actor.web", 'role = "gateway"\nkey = "x"', "[actor.NAME] of guests, brokers and authorities"),
        ("emulation", "create_keys = true", "[deployment]"),
    ],
)
def test_a_key_of_another_table_is_told_as_that(tmp_path: Path, table: str, key: str, homes: str) -> None:
    """With the tables that have it, and no key of this one that only looks like it."""
    name = key.replace('role = "gateway"\n', "").partition(" ")[0]
    found = faults(write(tmp_path, f"{SMALL}\n[{table}]\n{key}\n"))
    assert found[f"{table}.{name}"].startswith(f"found a key of {homes}, expected one of: ")
    assert "did you mean" not in found[f"{table}.{name}"]


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ('[actor.guest.settings]\nredeem_laed = "5s"', "actor.guest.settings.redeem_laed", "did you mean redeem_lead?"),
        ('[actor.guest.settings]\nredeem_lead = "5q"', "actor.guest.settings.redeem_lead", "such as 90s"),
        ("[actor.guest.settings]\nretry_first = -5", "actor.guest.settings.retry_first", "a duration"),
        ('[actor.guest.settings]\ndefault_broker = "x"', "actor.guest.settings.default_broker", "no broker here"),
        ('[actor.broker.settings.preemptible]\nnotice_max = "10s"', "actor.broker.settings.preemptible.notice_max",
         "expected >= 30s"),
        ("[actor.broker.settings]\npriorities = {}", "actor.broker.settings.priorities", "a key of [actor.broker], "),
        ("[actor.site.settings]\ninventory = []", "actor.site.settings.inventory", "a key of [actor.site], "),
        ('[actor.broker.driver.x]\nkind = "null"', "actor.broker.driver", "[actor.NAME] of role authority or "),
        ('[actor.site.driver.x]\nkind = "nul"', "actor.site.driver.x", "did you mean null?"),
        ("[actor.site.driver.x]\nretries = 1", "actor.site.driver.x.kind", "found nothing, expected text in quotes"),
        ('[actor.site.driver.x]\nkind = "null"\nlatency = { setup = "2q" }', "actor.site.driver.x.latency.setup",
         "found"),
        ('[actor.site.driver.x]\nkind = "null"\nretries = -1', "actor.site.driver.x.retries", ">= 0"),
        ('[actor.site.driver.x]\nkind = "null"\nemulated = {}', "actor.site.driver.x.emulated", "emulated as it is"),
        ('[actor.site.driver.x]\nkind = "process"', "actor.site.driver.x.directory", "found nothing, expected a path"),
        ('[actor.site.driver.x]\nkind = "process"\ndirectory = "d"\nemulated = { latency = { set_up = 3 } }',
         "actor.site.driver.x.emulated.latency.set_up", "'setup'"),
        ('[actor.site.driver.x]\nkind = "null"\ntypes = ["mv"]', "actor.site.driver.x.types",
         "no type of the inventory, expected one of: vm"),
        ('[actor.guest.driver.x]\nkind = "null"\ntypes = ["mv"]', "actor.guest.driver.x.types",
         "no site has, expected one of: vm"),
        ('[actor.guest.driver.x]\nkind = "null"\n[actor.guest.driver.y]\nkind = "null"', "actor.guest.driver.y",
         "no types"),
        ('[actor.guest.driver.x]\nkind = "null"\ntypes = ["vm", "vm"]', "actor.guest.driver.x.types", "'vm'"),
        ('[[actor.site.inventory]]\ntype = "x"\nnames = ["vm-1"]', "actor.site.inventory[1]", "inventory[0] has"),
        ('[[actor.site.inventory]]\ntype = "x"\nnames = ["a", "a"]', "actor.site.inventory[1]", "'a' twice"),
        ('[[actor.site.inventory]]\ntype = "vm"\nunits = 1\nprefix = "b"', "actor.site.inventory[1].type",
         "different types"),
        ('[[actor.site.inventory]]\nunits = 1', "actor.site.inventory[1].type", "found nothing"),
        ('[[actor.site.delegation]]\nbroker = "broker"\ntype = "vm"\nunits = 1', "actor.site.delegation[1]", "again"),
        ('[[actor.site.delegation]]\nbroker = "broker"\ntype = "mv"\nunits = 1', "actor.site.delegation[1].type",
         "one of: vm"),
        ('[actor.guest.mapper]\nname = 3', "actor.guest.mapper.name", "in quotes"),
        ('[actor.guest.mapper]\nname = "nobody"', "actor.guest.mapper.name", "'nobody'"),
        ('[actor.broker.mapper]\nbalanec = "first_fit"', "actor.broker.mapper.balanec", "did you mean balance?"),
        ("[actor.guest.shell]\nbatch_max = 0", "actor.guest.shell.batch_max", ">= 1"),
        (FOLLOWING.replace("synthetic = {}, ", ""), "actor.guest.mapper.signal", "neither of file and synthetic"),
        (FOLLOWING.replace("synthetic = {}", 'synthetic = {}, file = "x"'), "actor.guest.mapper.signal", "both of"),
        (FOLLOWING.replace("{}", "{ daily = 2 }"), "actor.guest.mapper.signal.synthetic.daily", "a share from 0 to 1"),
        (FOLLOWING.replace("peak = 4", "peak = 0"), "actor.guest.mapper.signal.peak", "> 0"),
        (FOLLOWING.replace("peak = 4", 'start = "soon"'), "actor.guest.mapper.signal.start", "1998-06-11T22:00Z"),
        ('[peer.site]\nrole = "authority"\nkey = "x.pub"', "peer.site", "the name of an actor of this file"),
        ('[peer.x]\nrole = "authority"', "peer.x.key", "found nothing"),
        (f'[peer.x]\nrole = "broker"\nkey = "{"00" * 32}"\naddress = "tcp://x:0"', "peer.x.address", "a port to dial"),
        ('[peer.x]\nrole = "king"\nkey = "x"', "peer.x.role", "'authority'"),
        ('[emulation]\nhorizon = "1d"\n[peer.x]\nrole = "broker"\nkey = "x.pub"', "peer", "all actors of an emulation"),
    ],
)  # fmt: skip
def test_single_faults_in_what_is_added(tmp_path: Path, more: str, key: str, words: str) -> None:
    """Each is found under its key, in words that say what is allowed."""
    found = faults(write(tmp_path, f"{SMALL}\n{more}\n"))
    assert key in found, found
    assert words in found[key]


def test_a_guest_needs_a_broker_and_a_site(tmp_path: Path) -> None:
    """A guest without either is told so."""
    found = faults(write(tmp_path, '[actor.guest]\nrole = "guest"\n'))
    assert "no broker for it" in found["actor.guest"]


def test_malformed_keys_are_found_and_not_shown(tmp_path: Path) -> None:
    """Key files that exist are checked; what they hold is in no error."""
    keys = tmp_path / "state" / "keys"
    keys.mkdir(parents=True)
    (keys / "site.key").write_text(f"leasekit-key-1 {'5e' * 32}", encoding="ascii")
    (keys / "site.key").chmod(0o644)
    (keys / "guest.key").write_text(f"leasekit-key-1 {'5e' * 31}", encoding="ascii")
    (keys / "guest.key").chmod(0o600)
    more = '[peer.x]\nrole = "broker"\nkey = "keys/site.key"\n'
    found = faults(write(tmp_path, SMALL + more))
    assert "chmod 600" in found["actor.site.key"]
    assert "damaged" in found["actor.guest.key"]
    assert "a secret key" in found["peer.x.key"]
    assert "5e5e5e" not in str(found)


@pytest.mark.parametrize(
    ("data", "key", "words"),
    [
        (b"[actor.site]\nrole = \n", "line 2, column 8", "a syntax error"),
        (b"[actor.site\n", "line 1, column 12", "a syntax error"),
        (b"a = 1\na = 2\n", "line 2, column 6", "Cannot overwrite"),
        (b'a = "', "line 1, column 6", "a syntax error"),
        (b'a = "\xff"\n', "line 1, column 6", "0xff"),
        (b"\n" * 5_000_000, "", "more than"),
        (b"a = " + b"[" * 100_000, "", "too deep"),
    ],
)
def test_files_that_are_not_toml(tmp_path: Path, data: bytes, key: str, words: str) -> None:
    """The place is said by line and column."""
    path = tmp_path / "deploy.toml"
    path.write_bytes(data)
    errors = check(path)[0]
    assert len(errors) == 1
    assert errors[0].key == key
    assert words in errors[0].found


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A missing file and a folder are one clear error each."""
    (missing,), _ = check(tmp_path / "x.toml")
    assert str(missing) == f"{tmp_path}/x.toml: found no such file, expected a deploy file in TOML"
    (folder,), _ = check(tmp_path)
    assert "can't be read" in str(folder)


def test_an_empty_file(tmp_path: Path) -> None:
    """It has no actors, which is an error."""
    assert set(faults(write(tmp_path, ""))) == {"actor"}


@pytest.mark.parametrize(
    "text", ["actor = 3", "actor.x = 3", "peer = []", "deployment = 1", "emulation = 'x'", "[[actor]]"]
)
def test_values_where_tables_belong(tmp_path: Path, text: str) -> None:
    """They are errors, not tracebacks."""
    assert faults(write(tmp_path, text))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=5), st.just("site")
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
KEYS = st.sampled_from(
    [
        "actor", "actor.site", "actor.site.inventory", "actor.site.inventory.0", "actor.site.inventory.0.names",
         "actor.guest",
        "actor.site.delegation.0.units", "actor.site.driver", "actor.site.driver.d", "actor.guest.mapper", "actor.x",
        "actor.guest.mapper.signal", "actor.site.listen", "actor.broker.priorities", "peer", "peer.p", "peer.p.key",
         "emulation",
        "emulation.run", "emulation.plot", "actor.guest.settings", "deployment", "actor.guest.key",
         "actor.guest.mapper.name",
        "actor.site.inventory.0.type", "actor.site.shell", "actor.guest.role", "deployment.state",
    ]
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_a_file_says_it_loads_or_has_errors(changes: dict[str, object]) -> None:
    """Any value at any key gives a deployment or ConfigErrors, never another exception."""
    try:
        load(SMALL_FILE, Path("state-of-a-test"), changes)
    except ConfigErrors as error:
        assert error.errors
        assert all(str(fault).startswith(str(SMALL_FILE)) for fault in error.errors)
