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

Guests send filters: text, words, nesting and numbers are limited. A filter is read once, and kept in a form in which
literals are numbers already; a set of literals costs one comparison however many they are. There are no patterns: each
comparison costs about the same, whatever it compares.
"""

from __future__ import annotations

import json
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from leasekit.core.errors import LeasekitError
from leasekit.core.properties import Properties
from leasekit.core.tuples import new_tuple

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


DEPTH_MAX: Final = 32
"""The deepest nesting of parentheses, ``not`` and lists."""
SHOWN_MAX: Final = 40


class FilterError(LeasekitError):
    """A filter that can't be read, or asks for an attribute that nothing has.

    ``position`` is the index of the character in ``text`` at which the fault is.
    """

    def __init__(self, text: str, position: int, fault: str) -> None:
        self.text, self.position, self.fault = text, position, fault
        begin = max(0, position - SHOWN_MAX // 2)
        cut = text[begin : begin + SHOWN_MAX]
        shown = f"{'...' if begin else ''}{cut}{'...' if begin + SHOWN_MAX < len(text) else ''}"
        super().__init__(f"filter: character {position + 1}: {fault}, in {shown!r}")


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?(?![\w$]|\.\d))
      | (?P<name>\$?[A-Za-z_]\w*(?:[.:/-]\w+)*|\d\w*(?:[.:/-]\w+)*)
      | (?P<sign>\.\.|==|!=|<=|>=|=|<|>|\(|\)|\{|\}|\[|\]|,)
      | (?P<wrong>\S))""",
    re.VERBOSE | re.ASCII,
)
_COMPARISONS: Final = frozenset({"==", "=", "!=", "<", "<=", ">", ">="})
_WORDS: Final = frozenset({"and", "or", "not", "in"})


WORDS_MAX: Final = 512
"""The most words and signs of a filter: what it costs to read, to keep and to ask goes by them."""


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        word, position = match[kind], match.start(kind)
        if kind == "wrong":
            fault = "a quote that is never closed" if word in "\"'" else f"unexpected {word!r}"
            raise FilterError(text, position, fault)
        if len(found) == WORDS_MAX:
            raise FilterError(text, position, f"found more than {WORDS_MAX} words and signs")
        plain = kind == "sign" or (kind == "name" and word in _WORDS)
        found.append(new_tuple(_Token, (word if plain else kind, word, position)))
    found.append(_Token("end", "", len(text)))
    return found


class Parser:
    """By recursive descent; ``depth`` counts how deep."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: dict[str, int] = {}
        self._tokens = _tokens(text)
        self._at = 0
        self.token = self._tokens[0]

    def fault(self, expected: str) -> FilterError:
        found = "the end" if self.token.kind == "end" else f"{self.token.text!r:.60}"
        return FilterError(self.text, self.token.position, f"found {found}, expected {expected}")

    def _take(self) -> _Token:
        token = self.token
        if token.kind != "end":
            self._at += 1
            self.token = self._tokens[self._at]
        return token

    def _expect(self, kind: str, words: str) -> _Token:
        if self.token.kind != kind:
            raise self.fault(words)
        return self._take()

    def _deeper(self, depth: int) -> int:
        if depth >= DEPTH_MAX:
            raise FilterError(self.text, self.token.position, f"nested deeper than {DEPTH_MAX}")
        return depth + 1

    # -- text -----------------------------------------------------------------------------------------------------

    def either(self, depth: int) -> Node:
        return self._joined("or", lambda: self._joined("and", lambda: self._negated(depth), every=True), every=False)

    def _joined(self, word: str, part: Callable[[], Node], *, every: bool) -> Node:
        parts = [part()]
        while self.token.kind == word:
            self._take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else Both(tuple(parts), every)

    def _negated(self, depth: int) -> Node:
        if self.token.kind == "not":
            self._take()
            return Not(self._negated(self._deeper(depth)))
        if self.token.kind == "(":
            self._take()
            inner = self.either(self._deeper(depth))
            self._expect(")", "')', and, or")
            return inner
        return self._comparison()

    def _comparison(self) -> Node:
        if self.token.kind != "name":
            raise self.fault("an attribute, not, or '('")
        left = self._attribute(self._take())
        if self.token.kind in _COMPARISONS:
            op = self._take().text
            return Compare(left, "==" if op == "=" else op, (self._value(),), every=True)
        if self.token.kind not in ("in", "not"):
            return Flag(left)
        negated = self.token.kind == "not"
        self._take()
        if negated:
            self._expect("in", "in")
        found = self._members(left)
        return Not(found) if negated else found

    def _members(self, left: Value) -> Node:
        closing = {"{": "}", "[": "]", "(": ")"}.get(self.token.kind)
        if closing is None:
            return self._range(left)
        self._take()
        values = [self._value()]
        while self.token.kind == ",":
            self._take()
            values.append(self._value())
        self._expect(closing, f"',' or {closing!r}")
        return Compare(left, "==", tuple(values), every=False)

    def _range(self, left: Value) -> Node:
        if self.token.kind not in ("number", "string", "name", ".."):
            raise self.fault("a set such as {a, b} or a range such as 8..32")
        low = None if self.token.kind == ".." else self._value()
        self._expect("..", "'..', for a range such as 8..32")
        high = self._value() if self.token.kind in ("number", "string", "name") else None
        if low is None and high is None:
            raise self.fault("a bound of the range")
        return Within(left, low, high)

    def _value(self) -> Value:
        token = self.token
        if token.kind not in ("number", "string", "name"):
            raise self.fault("a number, text, or $attribute")
        self._take()
        if token.kind == "string":
            return Value(self._unquoted(token), False)
        if token.text.startswith("$"):
            return self._attribute(token)
        return Value(token.text, False)

    def _attribute(self, token: _Token) -> Value:
        name = token.text.removeprefix("$")
        self.names.setdefault(name, token.position)
        return Value(name, True)

    def _unquoted(self, token: _Token) -> str:
        body = token.text[1:-1]
        if token.text[0] == "'":
            body = body.replace("\\'", "'").replace('"', '\\"')
        try:
            return str(json.loads(f'"{body}"', strict=False))
        except json.JSONDecodeError as error:
            raise FilterError(self.text, token.position + error.pos, f"in quoted text, {error.msg.lower()}") from error

    # -- lists ----------------------------------------------------------------------------------------------------

    def as_list(self, depth: int) -> Node:
        """A list such as ``[">=", "$ram", 1024]``."""
        depth = self._deeper(depth)
        self._expect("[", 'a list, such as [">=", "$ram", 1024]')
        token = self._expect("string", "an operator in quotes")
        op = self._unquoted(token)
        if op in ("and", "or", "not"):
            return self._list_of_lists(op, depth)
        if op != "in" and op not in _COMPARISONS:
            allowed = "and, or, not, in, =, ==, !=, <, <=, >, >="
            raise FilterError(self.text, token.position, f"found operator {op!r:.40}, allowed are {allowed}")
        values: list[Value] = []
        while self.token.kind == ",":
            self._take()
            values += self._operands(op, bool(values))
        self._expect("]", "',' or ']'")
        if len(values) < 2:
            raise FilterError(self.text, token.position, f"{op!r} has {len(values)} operands, expected 2 or more")
        return Compare(values[0], "==" if op in ("=", "in") else op, tuple(values[1:]), every=op != "in")

    def _list_of_lists(self, op: str, depth: int) -> Node:
        start, parts = self.token.position, []
        while self.token.kind == ",":
            self._take()
            parts.append(self.as_list(depth))
        self._expect("]", "',' or ']'")
        if not parts or (op == "not" and len(parts) > 1):
            expected = "one list" if op == "not" else "one list or more"
            raise FilterError(self.text, start, f"{op!r} has {len(parts)} operands, expected {expected}")
        return Not(parts[0]) if op == "not" else Both(tuple(parts), op == "and")

    def _operands(self, op: str, more: bool) -> list[Value]:
        """One operand; for ``in`` also a list of them."""
        if self.token.kind == "[" and op == "in" and more:
            self._take()
            values = [self._listed()]
            while self.token.kind == ",":
                self._take()
                values.append(self._listed())
            self._expect("]", "',' or ']'")
            return values
        return [self._listed()]

    def _listed(self) -> Value:
        token = self.token
        if token.kind == "name" and token.text in ("true", "false"):
            self._take()
            return Value(token.text, False)
        if token.kind not in ("number", "string"):
            raise self.fault("a number or text in quotes")
        self._take()
        text = self._unquoted(token) if token.kind == "string" else token.text
        if token.kind == "string" and len(text) > 1 and text.startswith("$"):
            self.names.setdefault(text[1:], token.position)
            return Value(text[1:], True)
        return Value(text, False)


LENGTH_MAX: Final = 4_096
"""The longest filter, in characters."""
KEPT_MAX: Final = 64
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
    return Filter(text, root, parser.names)


def _known(name: str, there: Iterable[str]) -> str:
    names = sorted(there)
    if not names:
        return "and nothing here has any attributes"
    near = get_close_matches(name, names, n=1)
    rest = f" and {len(names) - 20} more" if len(names) > 20 else ""
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"known are: {', '.join(names[:20])}{rest}{hint}"


ANSWERS_MAX: Final = 16_384
"""How many filters' answers are kept: more than one peer may have requests waiting (``open_requests``)."""

Shown: TypeAlias = frozenset[tuple[str, str]]
"""What a filter sees of a class of units at a site."""


def seen(site: str, type_: str, attributes: Properties) -> Shown:
    """What a filter sees of units of a type with these attributes."""
    return frozenset({**attributes, "site": site, "type": type_}.items())


Answer = TypeVar("Answer")
_answers: Final[OrderedDict[tuple[bytes, object], Any]] = OrderedDict()
"""By the digest of a filter, and what it was asked about; the one that was of no use for longest first."""


def _kept(text: str, about: Shown | frozenset[Shown], ask_it: Callable[[], Answer]) -> Answer:
    """What a filter says, asked once. Its text is not kept: guests send long ones, each different, without end."""
    key = sha256(text.encode(errors="surrogatepass")).digest(), about
    found: Answer | None = _answers.pop(key, None)
    if found is None:
        found = ask_it()
    _answers[key] = found
    if len(_answers) > ANSWERS_MAX:
        _answers.popitem(last=False)
    return found


def takes(text: str, one: Shown) -> bool:
    """Whether a filter takes it. Raises ``FilterError`` for a text that is none."""
    return _kept(text, one, lambda: parse_filter(text)(dict(one)))


def ask(text: str, offered: frozenset[Shown]) -> tuple[str, frozenset[Shown]]:
    """What is wrong with a filter, and which of all that is offered it takes."""
    return _kept(text, offered, lambda: _asked(text, offered))


def _asked(text: str, offered: frozenset[Shown]) -> tuple[str, frozenset[Shown]]:
    try:
        found = parse_filter(text)
        if offered:
            found.check(name for one in offered for name, _ in one)
    except FilterError as error:
        return f"properties.{error}", frozenset()
    return "", frozenset(one for one in offered if found(dict(one)))


def misses(text: str, one: Shown) -> str:
    """Why a filter does not take it."""
    return parse_filter(text).misses(dict(one))
