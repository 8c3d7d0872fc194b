"""Filters over properties: which types, sites and units will do, written as an expression or as Nova's JSON lists.

As text::

    memory_mb >= 2048 and (os in {debian, ubuntu} or not virtual)
    cores in 8..32 and cpu_mhz > $base_mhz and site != "east"

As a list, in the form of Nova's JSON filter::

    ["and", [">=", "$memory_mb", 2048], ["in", "$os", "debian", "ubuntu"]]

What stands to the left is an attribute; to the right a bare word is text, and ``$name`` is an attribute. ``name`` alone
asks whether a flag is set: there, and neither empty, ``0``, ``no`` nor ``false``. ``in {a, b}`` and ``in 8..32`` (both
ends count, either may be left out) have a ``not in``. Operators are ``==`` (or ``=``), ``!=``, ``<``, ``<=``, ``>`` and
``>=``, joined by ``not``, ``and``, ``or`` in this order. In a list, ``=``, ``<``, ... may have more than two operands,
of which the first is compared with each of the others; ``not`` takes one, ``and`` and ``or`` any number from one on.

Properties are strings. Where both sides read as decimal numbers they are compared as numbers, so that "10" is more than
"9" and "8.0" equals "8"; otherwise as text, but a number is neither less nor more than a word. A comparison with an
attribute that something hasn't got is false, also one with ``!=``.

Guests send filters: text, nesting, comparisons and numbers are limited. A filter is read once, and kept in a form in
which literals are numbers already; a set of literals costs one comparison however many they are. There are no patterns:
each comparison costs about the same, whatever it compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from leasekit.core.filters.nodes import Attributes, Node, Seen, why_not
from leasekit.core.filters.reading import DEPTH_MAX, FilterError, Parser

__all__ = ["COMPARISONS_MAX", "DEPTH_MAX", "LENGTH_MAX", "Attributes", "Filter", "FilterError", "parse_filter"]

LENGTH_MAX: Final = 4_096
"""The longest filter, in characters."""
COMPARISONS_MAX: Final = 128
"""The most comparisons in a filter: each operator, flag, ``not``, bound of a range and attribute on the right counts as
one, a set of literals as one in all."""
KEPT_MAX: Final = 256
"""How many filters are kept once they are read, with those that could not be: each takes up to 200 kB."""


class Filter:
    """A filter that has been read. Calling it says whether attributes will do."""

    __slots__ = ("_names", "_root", "_test", "cost", "text")

    def __init__(self, text: str, root: Node, names: Mapping[str, int]) -> None:
        self.text = text
        self.cost = root.cost + len(names)
        """What asking it costs at most, in comparisons: reading an attribute costs about as much as one."""
        self._root = root
        self._test = root.test()
        self._names = names

    @property
    def names(self) -> Sequence[str]:
        """The attributes that it asks for, in order of appearance."""
        return list(self._names)

    def __call__(self, attributes: Attributes) -> bool:
        """Whether these attributes will do. Fits where a timetable of units takes a ``where``."""
        return self._test(Seen(attributes))

    def check(self, known: Iterable[str]) -> None:
        """Raise :class:`FilterError`, with those that are known, for an attribute that isn't among them."""
        there = set(known)
        for name, position in self._names.items():
            if name not in there:
                raise FilterError(self.text, position, f"unknown attribute {name!r:.80}, {_known(name, there)}")

    def misses(self, attributes: Attributes) -> str:
        """Why these attributes won't do, such as ``memory_mb is 1024, wanted >= 2048``; empty where they do."""
        return why_not(self._root, attributes, Seen(attributes), wanted=True) or ""

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


def parse_filter(text: str) -> Filter:
    """Read a filter in either form. Raises :class:`FilterError` that points at the character."""
    found = _read(text)
    if isinstance(found, Filter):
        return found
    raise FilterError(text, *found)


@lru_cache(maxsize=KEPT_MAX)
def _read(text: str) -> Filter | tuple[int, str]:
    """The filter, or where and what is wrong with it: that is not looked for twice either."""
    if len(text) > LENGTH_MAX:
        return LENGTH_MAX, f"found {len(text)} characters, at most {LENGTH_MAX} are allowed"
    try:
        parser = Parser(text)
        root = parser.as_list(0) if parser.token.kind == "[" else parser.either(0)
        if parser.token.kind != "end":
            raise parser.fault("and, or, or the end")
    except FilterError as error:
        return error.position, error.fault
    if root.cost > COMPARISONS_MAX:
        return 0, f"found {root.cost} comparisons, at most {COMPARISONS_MAX} are allowed"
    return Filter(text, root, parser.names)


def _known(name: str, there: Iterable[str]) -> str:
    names = sorted(there)
    if not names:
        return "and nothing here has any attributes"
    near = get_close_matches(name, names, n=1)
    rest = f" and {len(names) - 20} more" if len(names) > 20 else ""
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"known are: {', '.join(names[:20])}{rest}{hint}"
