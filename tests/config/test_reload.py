"""What a deploy file says otherwise than the actor that runs: what is taken, and what waits for a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy_texts import SMALL, changed, write

from leasekit.actors.settings import AuthoritySettings, BrokerSettings
from leasekit.config.deployment import Deployment
from leasekit.config.errors import ConfigErrors
from leasekit.config.load import load
from leasekit.config.reload import ChangedKey, reread

LISTEN = 'listen = ["unix:site.sock", "tcp://127.0.0.1:7301"]'


def after(folder: Path, text: str, actor: str = "site") -> tuple[Deployment, list[ChangedKey]]:
    """What ``actor`` makes of it when the small deployment becomes ``text``."""
    running = load(write(folder))
    write(folder, text)
    return reread(running, actor)


def said(changes: list[ChangedKey]) -> list[str]:
    return list(map(str, changes))


def test_what_is_new_is_taken_and_told_by_key(tmp_path: Path) -> None:
    """Units, quotas, permissions and levels of logs are as the file says now; a default has no value before."""
    text = changed(('type = "vm"\nunits = 4\nprop', 'type = "vm"\nunits = 6\nprop'), ("guest = 10", "guest = 20"))
    now, changes = after(tmp_path, text.replace(LISTEN, f'{LISTEN}\nlog_level = "debug"'))
    assert said(changes) == [
        "actor.site.inventory[0].units: 4 -> 6",
        'actor.site.log_level: nothing -> "debug"',
    ], "what a broker's own table says is nothing to a site"
    settings = now.actors["site"].settings
    assert isinstance(settings, AuthoritySettings) and len(settings.inventory[0].names) == 6
    assert now.actors["site"].table.log_level == "debug"
    running = load(write(tmp_path))
    write(tmp_path, text)
    now, changes = reread(running, "broker")
    assert said(changes) == ["actor.broker.priorities.guest: 10 -> 20"]
    settings = now.actors["broker"].settings
    assert isinstance(settings, BrokerSettings) and settings.priorities == {"guest": 20}


def test_what_is_not_there_any_more_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    """A key that is gone has no value any more."""
    now, changes = after(tmp_path, changed(('properties = { memory_mb = "2048" }\n', "")))
    assert said(changes) == ['actor.site.inventory[0].properties.memory_mb: "2048" -> nothing']
    assert now.actors["site"].settings.inventory[0].properties == {}


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (LISTEN, 'listen = ["unix:other.sock"]', "actor.site.listen"),
        ('role = "authority"', 'role = "authority"\ncontrol = "c.sock"', "actor.site.control"),
        ('role = "authority"', 'role = "authority"\nstore = "memory"', "actor.site.store"),
        ('role = "authority"', 'role = "authority"\nkey = "keys/other.key"', "actor.site.key"),
        ('role = "authority"', 'role = "authority"\nlog = "json"', "actor.site.log"),
        ('role = "authority"', 'role = "authority"\nshell.batch_max = 7', "actor.site.shell.batch_max"),
        ('role = "authority"', 'role = "authority"\ntransport.frame_max = 65536', "actor.site.transport.frame_max"),
        ('role = "authority"', 'role = "authority"\nsettings.clock_skew = "9s"', "actor.site.settings.clock_skew"),
        ("create_keys = true", "create_keys = false", "deployment.create_keys"),
    ],
)
def test_what_takes_a_restart_is_named_and_stays(tmp_path: Path, old: str, new: str, key: str) -> None:
    """It stays as it was, beside what is taken; another reload says it again."""
    text = changed((old, new), ('length = "30d"', 'length = "20d"'))
    now, changes = after(tmp_path, text)
    assert {change.key: change.restart for change in changes} == {key: True, "actor.site.delegation[0].length": False}
    was = load(write(tmp_path)).actors["site"]
    for field in ("listen", "control", "store", "key"):
        assert getattr(now.actors["site"], field) == getattr(was, field)
    for field in ("log", "shell", "transport"):
        assert getattr(now.actors["site"].table, field) == getattr(was.table, field)
    assert now.actors["site"].settings.clock_skew == was.settings.clock_skew
    write(tmp_path, text)
    assert [change.key for change in reread(now, "site")[1]] == [key]


def test_an_actor_that_runs_keeps_its_role_and_its_table(tmp_path: Path) -> None:
    """A file that names it no more, or as something else, says that it is to be stopped, not what it is to be."""
    less = SMALL[: SMALL.index("[actor.guest]")].replace("guest = 10", "")
    now, changes = after(tmp_path, less, "guest")
    assert said(changes) == ['actor.guest.role: "guest" -> nothing (needs a restart)']
    assert "guest" in now.actors
    other = changed(('[actor.guest]\nrole = "guest"', '[actor.guest]\nrole = "broker"'), ("guest = 10", ""))
    now, changes = after(tmp_path, other, "guest")
    assert said(changes) == ['actor.guest.role: "guest" -> "broker" (needs a restart)']
    assert now.actors["guest"].role == "guest"


def test_other_actors_are_peers(tmp_path: Path) -> None:
    """A new actor of the file is a new peer, of which its own settings are nobody else's business."""
    lab, far = 'role = "guest"\nsettings.leave_time = "9s"', f'role = "guest"\nkey = "{"0" * 64}"'
    now, changes = after(tmp_path, f"{SMALL}\n[actor.lab]\n{lab}\n[peer.far]\n{far}\n")
    assert [change.key for change in changes] == ["peer.far.role", "peer.far.key", "actor.lab.role"]
    assert "lab" in now.actors and "far" in now.peers
    assert not any(change.restart for change in changes)


def test_a_file_with_errors_changes_nothing(tmp_path: Path) -> None:
    """What is wrong is told as at a start, also where it would not be this actor's to take."""
    for text, word in (
        ("actor = [", "syntax error"),
        (changed(('broker = "broker"', 'broker = "brokre"')), "no broker here"),
        (changed((LISTEN, 'listen = ["tcp:nowhere"]')), "tcp:nowhere"),
    ):
        with pytest.raises(ConfigErrors, match=word):
            after(tmp_path, text)
