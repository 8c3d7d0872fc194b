"""What is wrong with a deploy file: every fault has a file, a key, what was found and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.settings import SettingsError, expect_one_of, structure

P = ParamSpec("P")
T = TypeVar("T")

_FAULT = re.compile(r"found (.*?), (?:expected|allowed (?:is|are)) (.*)", re.DOTALL)
_FOUND = "found "


@attrs.frozen
class ConfigError:
    """One fault. ``key`` is dotted, with list items in brackets (``actor.site.inventory[0].units``), or a line and
    column. ``allowed`` is empty where what was found says all.
    """

    file: str
    key: str
    found: str
    allowed: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        found, expected = f"found {self.found}" if self.found else "", f"expected {self.allowed}"
        return f"{where}: {', '.join((found, expected)) if found and self.allowed else found or self.allowed}"


class ConfigErrors(LeasekitError):
    """A deploy file that can't be used; ``errors`` holds all of its faults, the text one line for each."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class UnusableError(LeasekitError):
    """Something that can't be used; ``found`` and ``allowed`` are the text's two halves."""

    def __init__(self, found: str, allowed: str) -> None:
        super().__init__(f"found {found}, expected {allowed}")
        self.found = found
        self.allowed = allowed


class Faults:
    """Collects the faults of one file, so that one does not hide another."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.errors: list[ConfigError] = []

    def add(self, key: str, found: str, allowed: str) -> None:
        """Note a fault."""
        error = ConfigError(self.file, key, found, allowed)
        if error not in self.errors:
            self.errors.append(error)

    def add_settings(self, where: str, error: SettingsError) -> None:
        """Note what :func:`leasekit.core.settings.structure` said of the table ``where``."""
        for line in error.errors:
            path, _, text = line.removeprefix(where).partition(": ")
            match = _FAULT.fullmatch(text)
            if match is not None:
                found, allowed = match.groups()
            elif text.startswith(_FOUND):
                found, allowed = text.removeprefix(_FOUND), ""
            else:
                found, allowed = "", text or path
            self.add(f"{where}{path if text else ''}".lstrip("."), found, allowed)

    @contextmanager
    def noting(self, key: str) -> Iterator[None]:
        """Notes an :class:`UnusableError` that is raised in it, and goes on after it."""
        try:
            yield
        except UnusableError as error:
            self.add(key, error.found, error.allowed)

    def attempt(self, where: str, make: Callable[P, T], /, *args: P.args, **more: P.kwargs) -> T | None:
        """What ``make`` returns, or None after noting the ``SettingsError`` it raised about the table ``where``."""
        try:
            return make(*args, **more)
        except SettingsError as error:
            self.add_settings(where, error)
            return None

    def structured(self, cls: type[T], table: Any, where: str) -> T | None:
        """The table ``where`` as an instance of its class, or None after noting what is wrong with it."""
        return self.attempt(where, structure, cls, table, where)

    def finish(self) -> None:
        """Raise :class:`ConfigErrors` if anything was noted."""
        if self.errors:
            raise ConfigErrors(self.errors)


def one_of(found: str, allowed: Iterable[str]) -> str:
    """What is allowed where one of some names is, with the nearest of them."""
    return expect_one_of(found, allowed).removeprefix("expected ")
