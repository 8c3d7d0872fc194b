"""A guest's driver that takes units into its application by Ansible: a playbook for each action, run with the unit as
its only host.

The playbook sees ``leasekit.op``, ``leasekit.unit``, ``leasekit.lease``, ``leasekit.type``, ``leasekit.number`` and
``leasekit.properties``. Their texts are told to Ansible as unsafe: nothing in them is taken as a template. Ansible is
run as a program, never imported.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import trio

from leasekit.core.drivers import ProbeResult, UnitContext
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.settings import DurationSetting, SettingsError
from leasekit.core.time import SECOND
from leasekit.drivers.commands import Abandoned, Run, mark_of
from leasekit.drivers.names import check_member_id
from leasekit.drivers.one_sided import GuestOnly
from leasekit.drivers.script import INHERITED, SEARCH
from leasekit.drivers.ssh_login import login_of

PROGRAM: Final = "ansible-playbook"


@attrs.frozen(kw_only=True)
class AnsibleSettings:
    """``key`` is the file with the private key that units let in; ``user`` who logs in, where the unit's properties
    are not to say that; ``join`` and ``leave`` are playbooks for ``hosts: unit``; ``python`` is the interpreter on
    units. After ``grace`` what did not heed SIGTERM gets SIGKILL.
    """

    key: Path
    join: Path
    leave: Path | None = None
    user: str = ""
    python: str = "auto_silent"
    grace: DurationSetting = 5 * SECOND


class AnsibleDriver(GuestOnly):
    """A :class:`~leasekit.core.drivers.Driver` for guests. Raises ``SettingsError`` for files that are not there."""

    Settings: ClassVar[type] = AnsibleSettings
    kind: ClassVar[str] = "ansible"

    def __init__(self, settings: AnsibleSettings) -> None:
        self._settings = settings
        self._abandoned = Abandoned(settings.grace)
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._environment = {"PATH": SEARCH, **inherited}
        errors = [
            f"{name}: found {str(path)!r}, there is no such file"
            for name in ("key", "join", "leave")
            if (path := getattr(settings, name)) is not None and not path.is_file()
        ]
        self._program = shutil.which(PROGRAM, path=self._environment["PATH"]) or ""
        if not self._program:
            errors.append(f"there is no program {PROGRAM} here (install ansible-core)")
        if errors:
            raise SettingsError(errors)

    async def join(self, unit: UnitContext) -> Properties:
        """Runs the playbook ``join``."""
        await self._run("join", self._settings.join, unit)
        return EMPTY

    async def leave(self, unit: UnitContext) -> None:
        """Runs the playbook ``leave``, if there is one."""
        if self._settings.leave is not None:
            await self._run("leave", self._settings.leave, unit)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Nobody knows: there is no playbook for it."""
        await trio.lowlevel.checkpoint()
        return ProbeResult(state="unknown", detail="the ansible driver has no probe")

    async def _run(self, op: str, playbook: Path, unit: UnitContext) -> None:
        check_member_id(unit.unit)
        settings, mark = self._settings, mark_of(unit.unit, unit.lease)
        await self._abandoned.end(mark)
        login = login_of(unit.properties, settings.user)
        with tempfile.TemporaryDirectory(prefix="leasekit-ansible-") as name:
            folder = Path(name)
            (folder / "known_hosts").write_text(login.known_hosts(), "utf-8")
            options = login.options(folder / "known_hosts", settings.key.absolute())
            host = {
                "ansible_host": login.host,
                "ansible_port": login.port,
                "ansible_user": login.user,
                "ansible_python_interpreter": settings.python,
                "ansible_ssh_args": shlex.join(["-F", "/dev/null", "-o", "IdentityAgent=none", *options]),
            }
            (folder / "inventory.json").write_text(json.dumps({"all": {"hosts": {"unit": host}}}), "utf-8")
            (folder / "variables.json").write_text(json.dumps({"leasekit": _told(unit, op)}), "utf-8")
            (folder / "ansible.cfg").write_text("[defaults]\nretry_files_enabled = False\nnocows = True\n", "utf-8")
            environment = {
                "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
                "ANSIBLE_LOCAL_TEMP": str(folder / "temporary"),
                "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "control"),
            }
            arguments = ["-i", "inventory.json", "-e", "@variables.json", str(playbook.absolute())]
            run = Run(
                # What it says goes to the log; there is nothing on its standard output that anybody reads.
                command=("/bin/sh", "-c", 'exec "$@" >&2', "sh", self._program, *arguments),
                directory=folder,
                environment={**self._environment, **environment},
                given=b"",
                grace=settings.grace,
                log=unit.log,
                what=f"{op}: {playbook.name}",
                mark=mark,
            )
            await run.output()


def _told(unit: UnitContext, op: str) -> dict[str, Any]:
    def text(value: str) -> dict[str, str]:
        return {"__ansible_unsafe": value}

    return {
        "op": op,
        "unit": text(unit.unit),
        "lease": text(unit.lease),
        "type": text(unit.type),
        "number": unit.number,
        "properties": {key: text(value) for key, value in unit.properties.items()},
    }
