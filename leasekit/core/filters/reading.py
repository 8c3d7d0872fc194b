"""How the text of a filter becomes nodes, in both forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from leasekit.core.errors import LeasekitError
from leasekit.core.filters.nodes import Both, Compare, Flag, Node, Not, Value, Within

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
    r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?(?![\w$]|\.\d))
      | (?P<name>\$?[A-Za-z_]\w*(?:[.:/-]\w+)*|\d\w*(?:[.:/-]\w+)*)
      | (?P<sign>\.\.|==|!=|<=|>=|=|<|>|\(|\)|\{|\}|\[|\]|,)""",
    re.VERBOSE | re.ASCII,
)
_COMPARISONS: Final = frozenset({"==", "=", "!=", "<", "<=", ">", ">="})
_WORDS: Final = frozenset({"and", "or", "not", "in"})


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            open_ = text[position] in "\"'"
            raise FilterError(
                text, position, "a quote that is never closed" if open_ else f"unexpected {text[position]!r}"
            )
        kind = str(match.lastgroup)
        if kind != "space":
            word = match[0]
            plain = kind == "sign" or (kind == "name" and word in _WORDS)
            found.append(_Token(word if plain else kind, word, position))
        position = match.end()
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
        self._at += 1
        self.token = self._tokens[min(self._at, len(self._tokens) - 1)]
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
