"""What `leasekit config check` finds in a file that is well-formed: names and types that lead nowhere, and files that
are missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy_texts import SMALL, changed, write

from leasekit.cli import main
from leasekit.config.keys import new_key, public_path
from leasekit.config.load import check

QUOTAS = """
[actor.broker.mapper]
name = "fair_share"
quotas = [{ holder = "guest", type = "vm", units = 2 }, { holder = "guset", units = 1 }, { type = "mv", units = 1 }]
weights = { guest = 2, gust = 3 }
"""
FOLLOWING = 'mapper = { name = "static", demands = [{ type = "gpu", term = "1h" }] }\n'
EMULATION = '[emulation]\nhorizon = "1d"\n'


def found(folder: Path, text: str) -> tuple[dict[str, str], list[str]]:
    """What is wrong with a file, by key, and what is odd."""
    errors, warnings = check(write(folder, text))
    return {error.key: f"{error.found}; {error.allowed}" for error in errors}, warnings


def test_nothing_is_odd_where_all_is_well(tmp_path: Path) -> None:
    """Holders and types that are there, and those that stand for all."""
    quotas = 'mapper = { name = "fcfs", quotas = [{ units = 3 }, { holder = "guest", type = "vm", units = 2 }] }\n'
    assert found(tmp_path, changed(("[actor.broker.priorities]\n", f"{quotas}[actor.broker.priorities]\n"))) == ({}, [])


def test_quotas_name_holders_and_types_that_are_there(tmp_path: Path) -> None:
    """Each that the file does not name is told by its key, with what is near to it; such a peer may be added later."""
    assert found(tmp_path, SMALL + QUOTAS) == (
        {},
        [
            "actor.broker.mapper.quotas[1].holder: found 'guset', whom this file does not name, "
            "expected one of: guest (did you mean guest?)",
            "actor.broker.mapper.weights.gust: found 'gust', whom this file does not name, "
            "expected one of: guest (did you mean guest?)",
            "actor.broker.mapper.quotas[2].type: found type 'mv', which no site has, expected one of: vm",
        ],
    )
    far = f'[peer.far]\nrole = "authority"\nkey = "{new_key(tmp_path / "far.key").public.hex()}"\n'
    assert [line.split(":")[0] for line in found(tmp_path, SMALL + QUOTAS + far)[1]] == [
        "actor.broker.mapper.quotas[1].holder",
        "actor.broker.mapper.weights.gust",
        "actor.guest, peer.far",
    ], "a site of another file may have any type"


def test_priorities_and_permissions_name_who_is_there(tmp_path: Path) -> None:
    """These are errors, as at a start; a priority at one who is asked for none is odd."""
    text = changed(("guest = 10", "guset = 10\n[actor.broker.permissions.geust]\npriority_max = 3"))
    assert set(found(tmp_path, text)[0]) == {"actor.broker.priorities.guset", "actor.broker.permissions.geust"}
    for actor, odd in (("broker", []), ("site", ["actor.site.permissions.guest.priority_max"])):
        errors, warnings = found(tmp_path, f"{SMALL}[actor.{actor}.permissions.guest]\npriority_max = 3\n")
        assert (errors, [line.split(":")[0] for line in warnings]) == ({}, odd)


@pytest.mark.parametrize("emulated", [False, True])
def test_types_that_nobody_offers(tmp_path: Path, emulated: bool) -> None:
    """One that a guest will ask for keeps an emulation from running, and is odd elsewhere; so are units that no broker
    gets.
    """
    text = SMALL + FOLLOWING + (EMULATION if emulated else "")
    errors, warnings = found(tmp_path, text)
    (line,) = [f"{key}: {words}" for key, words in errors.items()] if emulated else warnings[:1]
    assert line.startswith("actor.guest.mapper: ") and "type 'gpu', which no site offers to a broker" in line
    assert emulated or not errors
    more = changed(('type = "vm"\nunits = 4\nprop', 'type = "tape"\nunits = 1\n[[actor.site.inventory]]\ntype = "vm"\n'
                    'units = 4\nprop'))  # fmt: skip
    assert found(tmp_path, more)[1] == [
        "actor.site.delegation: found nothing for type 'tape', expected a broker that gets of it"
    ]


def test_of_runs_the_one_is_named(tmp_path: Path) -> None:
    """As `leasekit emulate` does."""
    run = 'run = [{ name = "one" }, { name = "none", set = { "actor.site.inventory.0.units" = 0 } }]\n'
    text = changed(('type = "vm"\nunits = 4\nlength', 'type = "vm"\nlength')) + EMULATION + run
    assert list(found(tmp_path, text)[0]) == ["run 'none': actor.site.inventory"]


def test_key_files_that_are_missing(tmp_path: Path) -> None:
    """With a state folder an actor's key is there, or its public one, or it can be made; so are those of peers."""
    text = changed(("create_keys = true", "create_keys = false")) + '[peer.far]\nrole = "guest"\nkey = "far.pub"\n'
    errors, (line,) = found(tmp_path, text)
    assert errors == {}, "nobody has begun"
    assert "no folder" in line and "leasekit keys new" in line and "create_keys = true" in line
    keys = tmp_path / "state" / "keys"
    new_key(keys / "site.key")
    new_key(keys / "broker.key")
    (keys / "broker.key").unlink()
    errors, _ = found(tmp_path, text)
    assert set(errors) == {"actor.guest.key", "peer.far.key"}
    assert "no file" in errors["actor.guest.key"] and "create_keys" in errors["actor.guest.key"]
    public_path(keys / "broker.key").write_text("nonsense")
    assert "actor.broker.key" in found(tmp_path, text)[0]
    made = text.replace("create_keys = false", "create_keys = true")
    assert set(found(tmp_path, made)[0]) == {"actor.broker.key", "peer.far.key"}


def test_a_passphrase_file_that_is_missing(tmp_path: Path) -> None:
    """Without it a key under a passphrase can't be unlocked; it is not unlocked here."""
    text = changed(('role = "guest"', 'role = "guest"\nkey = { file = "g.key", passphrase_file = "secret" }'))
    new_key(tmp_path / "state" / "g.key", b"a passphrase")
    assert "secret" in found(tmp_path, text)[0]["actor.guest.key"]
    (tmp_path / "state" / "secret").touch(mode=0o600)
    (tmp_path / "state" / "secret").write_text("another")
    assert found(tmp_path, text)[0] == {}


def test_scripts_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are odd, as the actor may run elsewhere; the command ends well, and says where they were looked for."""
    driver = '\n[actor.site.driver.own]\nkind = "script"\nsetup = [["./up.sh"]]\n'
    (tmp_path / "state").mkdir()
    (line,) = found(tmp_path, SMALL + driver)[1]
    assert line.startswith("actor.site.driver.own.setup[0]: found './up.sh', there is no file")
    assert main.run(["config", "check", str(tmp_path / "deploy.toml")]) == 0
    told = capsys.readouterr().err
    assert "nothing wrong, but:" in told and f"warning: {line}" in told
    (tmp_path / "state" / "up.sh").touch(mode=0o755)
    assert found(tmp_path, SMALL + driver)[1] == []
