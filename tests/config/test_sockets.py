"""Where a deploy file's daemons take commands, found without the rest of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.config.load import load
from leasekit.config.sockets import FILE_MAX, doors

DEPLOY = """
{head}
[actor.web]
role = "guest"
{control}
[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
"""


@pytest.mark.parametrize("head", ["", '[deployment]\nname = "lab"', '[deployment]\nname = "lab"\nstate = "../s"'])
@pytest.mark.parametrize("control", ["", 'control = "a.sock"', 'control = "unix:/run/a.sock"', 'control = "../a/b"'])
@pytest.mark.parametrize("state", [None, Path("given")])
@pytest.mark.parametrize("environment", ["", "named"])
def test_sockets_are_those_of_the_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, control: str, state: Path | None, environment: str
) -> None:
    """Names, roles and sockets are what the whole file says, wherever the state folder is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEKIT_STATE", environment)
    file = Path("lab.toml")
    file.write_text(DEPLOY.format(head=head, control=control))
    actors = load(file, state).actors.values()
    assert [tuple(door) for door in doors(file, state).values()] == [(a.name, a.role, a.control) for a in actors]


@pytest.mark.parametrize(
    "text",
    [
        "[actor.web",
        "actor = 3",
        "[actor]\nweb = 3",
        "[actor.web]\nrole = 3",
        "deployment = 3\n[actor.web]",
        "[deployment]\nstate = 3\n[actor.web]",
        "[deployment]\nname = 3\n[actor.web]",
        "[actor.web]\ncontrol = 3",
        '[actor.web]\ncontrol = "unix:"',
        '[actor.web]\ncontrol = "\\u0000"',
        "a = " + "[" * 100_000,
        "[actor.web]\nrole = 'guest'\n#" + "x" * FILE_MAX,
    ],
    ids=range(12),
)
def test_faults_are_left_to_who_reads_all(tmp_path: Path, text: str) -> None:
    """Where the file is not as it must be there is no socket."""
    file = tmp_path / "leasekit.toml"
    file.write_text(text)
    assert doors(file, None) == {}


def test_what_is_no_file_is_left_to_who_reads_all(tmp_path: Path) -> None:
    """A folder, a missing file, and what could be read just once have no sockets."""
    assert doors(tmp_path, None) == doors(tmp_path / "none.toml", None) == doors(Path("/dev/zero"), None) == {}
