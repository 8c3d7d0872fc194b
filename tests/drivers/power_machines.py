"""Machines whose power is a file, switched by commands of the site's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leasekit.core.drivers import Driver
from leasekit.drivers.registry import make_driver

CONTROL = """\
#!/bin/sh
# control FOLDER ORDER [DEVICE]
echo "$2 $3" >>"$1/orders"
case "$2" in
    on|off) echo "$2" >"$1/power.$$" && mv "$1/power.$$" "$1/power" ;;
    soft_off) [ -e "$1/stubborn" ] || { echo off >"$1/power.$$" && mv "$1/power.$$" "$1/power"; } ;;
    status) cat "$1/power" ;;
esac
"""


class PowerMachine:
    """One machine in a folder, off at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "power").write_text("off\n")
        self.control = folder / "control"
        self.control.write_text(CONTROL)
        self.control.chmod(0o755)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Its controller, as a deploy file has it."""
        orders = {order: self.command(order) for order in ("on", "off", "soft_off", "status", "boot")}
        return {"kind": "script", **orders, "order_timeout": "20s", "soft_timeout": "20s", **changes}

    def command(self, order: str) -> list[str]:
        return [str(self.control), str(self.folder), order]

    def orders(self) -> list[str]:
        """What was ordered, looks left out."""
        path = self.folder / "orders"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.strip() for line in lines if line.strip() != "status"]

    def is_on(self) -> bool:
        return (self.folder / "power").read_text() == "on\n"


class PowerHarness:
    """The power driver, for the contract tests: machines that are off when they are free."""

    def __init__(self, directory: Path) -> None:
        names = ["u1", "never", *(f"unit-{number}" for number in range(20))]
        self._machines = {name: PowerMachine(directory / name) for name in names}
        self.driver = self.make()

    def make(self, **changes: Any) -> Driver:
        nodes = {name: {"power": machine.settings(**changes)} for name, machine in self._machines.items()}
        return make_driver("power", {"nodes": nodes, "off_when_free": True}, "power")

    def reopen(self) -> Driver:
        return self.make()

    def slow(self) -> Driver:
        return self.make(on=["true"], order_timeout="1h")

    def failing(self, words: str) -> Driver:
        return self.make(on=["sh", "-c", f"echo '{words}' >&2; exit 3"])

    def leftovers(self) -> list[str]:
        return [name for name, machine in self._machines.items() if machine.is_on()]
