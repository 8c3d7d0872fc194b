"""What an actor takes: messages, commands and queries, each declared where it is handled.

A part of an actor marks its methods with :func:`takes`, :func:`command`, :func:`deferred` and :func:`query`; the
actor's :class:`Dispatch` finds them when the part is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from leasekit.core.errors import CommandError
from leasekit.core.properties import is_text
from leasekit.core.protocol.messages import ErrorReply
from leasekit.core.steps import Command
from leasekit.core.time import INSTANT_MAX, Instant
from leasekit.core.words import with_article

Handler = Callable[[str, Any], None]
"""Takes a message: from which peer, and the message."""
Answer = Callable[[Mapping[str, Any]], Any]
"""Carries out a command, or answers a query: its arguments to its result."""

F = TypeVar("F", bound=Callable[..., Any])
_MARK: Final = "_leasekit_takes"


def takes(message: type, need: str = "") -> Callable[[F], F]:
    """The method takes messages of a class, from peers that have the permission ``need`` (empty: from every peer)."""
    return _marked("messages", message, need)


def command(name: str) -> Callable[[F], F]:
    """The method carries out the operator's command ``name``."""
    return _marked("commands", name)


def deferred(name: str) -> Callable[[F], F]:
    """The method begins to carry out the operator's command ``name``, which is answered when a peer has answered."""
    return _marked("deferred", name)


def query(name: str) -> Callable[[F], F]:
    """The method answers the query ``name``."""
    return _marked("queries", name)


def _marked(table: str, key: object, need: str = "") -> Callable[[F], F]:
    def mark(method: F) -> F:
        setattr(method, _MARK, (table, key, need))
        return method

    return mark


def shown(record: object, *fields: str) -> dict[str, Any]:
    """These fields of a record as plain data, in the answer to a query."""
    values = ((field, getattr(record, field)) for field in fields)
    return {field: list(value) if isinstance(value, (list, tuple)) else value for field, value in values}


class Dispatch:
    """Who takes what, of an actor in ``role``."""

    def __init__(self, role: str) -> None:
        self._role = role
        self.messages: dict[type, Handler] = {}
        self.needs: dict[type, str] = {}
        self.commands: dict[str, Answer] = {}
        self.deferred: dict[str, Callable[[Command], None]] = {}
        self.queries: dict[str, Answer] = {}
        self.connected: list[Callable[[str], None]] = []
        """What happens, in order, when a connection to a peer comes up."""
        self.refused: list[Callable[[str, ErrorReply], bool]] = []
        """Who is told of an error that a peer sends, in order, until it was meant for one of them."""

    def add(self, part: object) -> None:
        """Have a part's methods take what they are marked with."""
        for owner in reversed(type(part).__mro__):
            for name, method in vars(owner).items():
                if hasattr(method, _MARK):
                    table, key, need = getattr(method, _MARK)
                    getattr(self, table)[key] = getattr(part, name)
                    if need:
                        self.needs[key] = need

    def carry_out(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a command. Raises ``LeasekitError``."""
        return self.prepare(name, arguments)()

    def prepare(self, name: str, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """What carries out a command. Raises ``CommandError`` if there is none, or for arguments that none takes."""
        answer = self._named("command", self.commands, name)
        check_arguments(arguments)
        return lambda: answer(arguments)

    def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a query. Raises ``CommandError``."""
        return self._named("query", self.queries, name)(arguments)

    def _named(self, what: str, table: Mapping[str, Answer], name: str) -> Answer:
        found = table.get(name)
        if found is None:
            has = ", ".join(sorted(table))
            raise CommandError(f"{with_article(self._role)} has no {what} {name!r}; it has {has}")
        return found


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """What no command takes, since no row or message can hold it: text that is not Unicode. Raises ``CommandError``."""
    for field, value in arguments.items():
        if not all(is_text(text) for text in _texts(value)):
            raise CommandError(f"{field!r:.40}: found {value!r:.80}, which is not Unicode: half of a surrogate pair")


def _texts(value: Any) -> Iterable[str]:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple)):
            todo += one


def instant_of(arguments: Mapping[str, Any], field: str) -> Instant | None:
    """An instant among a command's arguments; None if it isn't given. Raises ``CommandError``."""
    value = arguments.get(field)
    if value is None or (type(value) is int and 0 <= value <= INSTANT_MAX):
        return value
    raise CommandError(f"{field}: found {value!r:.80}, expected an instant: milliseconds from 0 to {INSTANT_MAX}")
