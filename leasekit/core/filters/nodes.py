"""What a filter is made of: comparisons and what joins them, each of which makes its own test."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

Attributes: TypeAlias = Mapping[str, str]
Read: TypeAlias = tuple[str, int | float | None]
"""Text, and the number that it is, if any."""
Test: TypeAlias = Callable[["Seen"], bool]
FALSE: Final = ("", "0", "no", "false")
FALSE_MAX: Final = max(map(len, FALSE))


class Seen(dict[str, "Read | None"]):
    """Attributes as comparisons need them, each of them read when it is first asked for."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes

    def __missing__(self, name: str) -> Read | None:
        text = self._attributes.get(name)
        found = self[name] = None if text is None else (text, _number(text))
        return found


class Value(NamedTuple):
    """A literal, or an attribute's name where ``attribute`` is set."""

    text: str
    attribute: bool

    def reader(self) -> Callable[[Seen], Read | None]:
        """What reads it."""
        name = self.text
        if self.attribute:
            return lambda seen: seen[name]
        read = (name, _number(name))
        return lambda seen: read

    def of(self, attributes: Attributes) -> str | None:
        return attributes.get(self.text) if self.attribute else self.text

    def __str__(self) -> str:
        return f"${self.text}" if self.attribute else self.text


class Compare(NamedTuple):
    """An attribute (or literal) against one of several others: ``left op any of rights``, or all where ``every``."""

    left: Value
    op: str
    rights: tuple[Value, ...]
    every: bool

    @property
    def _is_set(self) -> bool:
        """Whether one look at all literals at once decides it."""
        return not any(value.attribute for value in self.rights) and (self.op == "!=" or not self.every)

    @property
    def cost(self) -> int:
        return 1 if self._is_set else len(self.rights)

    def test(self) -> Test:
        left = self.left.reader()
        if self._is_set:
            return _among(left, [value.text for value in self.rights], wanted=self.op == "==")
        test, rights, every = _OPERATORS[self.op], [value.reader() for value in self.rights], self.every

        def compare(seen: Seen) -> bool:
            a = left(seen)
            if a is None:
                return False
            for right in rights:
                b = right(seen)
                if (b is not None and test(a, b)) is not every:
                    return not every
            return every

        return compare

    def wanted(self) -> str:
        words = ", ".join(map(str, self.rights))
        if self.op == "==" and not self.every:
            return f"in {{{words}}}"
        return f"not in {{{words}}}" if len(self.rights) > 1 and self.op == "!=" else f"{self.op} {words}"


class Within(NamedTuple):
    """An attribute between two values, both of which count; None is no bound."""

    left: Value
    low: Value | None
    high: Value | None

    @property
    def cost(self) -> int:
        return 2

    def test(self) -> Test:
        bounds = ((">=", self.low), ("<=", self.high))
        parts = [Compare(self.left, op, (bound,), every=True) for op, bound in bounds if bound is not None]
        return Both(tuple(parts), every=True).test()

    def wanted(self) -> str:
        return f"in {self.low if self.low else ''}..{self.high if self.high else ''}"


class Flag(NamedTuple):
    """Whether an attribute is there and set."""

    left: Value

    @property
    def cost(self) -> int:
        return 1

    def test(self) -> Test:
        name = self.left.text

        def is_set(seen: Seen) -> bool:
            found = seen[name]
            return found is not None and (len(found[0]) > FALSE_MAX or found[0].lower() not in FALSE)

        return is_set

    def wanted(self) -> str:
        return "set"


class Not(NamedTuple):
    """What the other is not; an attribute that isn't there makes a comparison false, and its ``not`` true."""

    part: Node

    @property
    def cost(self) -> int:
        return 1 + self.part.cost

    def test(self) -> Test:
        part = self.part.test()
        return lambda seen: not part(seen)


class Both(NamedTuple):
    """All of the parts (``every``) or one of them."""

    parts: tuple[Node, ...]
    every: bool

    @property
    def cost(self) -> int:
        return sum(part.cost for part in self.parts)

    def test(self) -> Test:
        parts, every = [part.test() for part in self.parts], self.every

        def joined(seen: Seen) -> bool:
            for part in parts:
                if part(seen) is not every:
                    return not every
            return every

        return joined


Leaf: TypeAlias = Compare | Within | Flag
Node: TypeAlias = Leaf | Not | Both


_NUMBER: Final = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?\s*", re.ASCII)
NUMBER_MAX: Final = 100
"""The longest text that counts as a number."""


def _number(text: str) -> int | float | None:
    """The number that a text is, exact where it is whole; None where it is none."""
    if len(text) > NUMBER_MAX or _NUMBER.fullmatch(text) is None:
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)


def _among(left: Callable[[Seen], Read | None], texts: Sequence[str], *, wanted: bool) -> Test:
    """Whether what ``left`` reads equals one of the literals, or none of them."""
    words = frozenset(texts)
    numbers = frozenset(number for text in texts if (number := _number(text)) is not None)

    def among(seen: Seen) -> bool:
        found = left(seen)
        return found is not None and (found[0] in words or found[1] in numbers) is wanted

    return among


def _compared(test: Callable[[int | float | str, int | float | str], bool]) -> Callable[[Read, Read], bool]:
    def compare(left: Read, right: Read) -> bool:
        a, b = left[1], right[1]
        if a is not None and b is not None:
            return test(a, b)
        return a is None and b is None and test(left[0], right[0])

    return compare


def _equal(left: Read, right: Read) -> bool:
    return left[0] == right[0] or (left[1] is not None and left[1] == right[1])


_OPERATORS: Final[Mapping[str, Callable[[Read, Read], bool]]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _compared(operator.lt),
    "<=": _compared(operator.le),
    ">": _compared(operator.gt),
    ">=": _compared(operator.ge),
}


def why_not(node: Node, attributes: Attributes, seen: Seen, *, wanted: bool) -> str | None:
    """What of a node that doesn't match (or does, and must not) is to blame; None where it is as it is wanted. Each
    part is asked once at most.
    """
    if isinstance(node, Not):
        return why_not(node.part, attributes, seen, wanted=not wanted)
    if isinstance(node, Both):
        faults = (why_not(part, attributes, seen, wanted=wanted) for part in node.parts)
        if node.every is wanted:
            return next((fault for fault in faults if fault is not None), None)
        failed = []
        for fault in faults:
            if fault is None:
                return None
            failed.append(fault)
        return " and ".join(failed[:3]) if wanted else failed[0]
    if node.test()(seen) is wanted:
        return None
    found = node.left.of(attributes)
    if found is None:
        return f"it has no {node.left.text}"
    return f"{node.left.text} is {found:.80}, wanted {'' if wanted else 'not '}{node.wanted():.200}"
