"""What guests may say that is hard to carry: long lists, odd Unicode, what looks like markup or a command, and filters
that cost all that they may; and the book of what was said, which is to arrive as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from leasekit.core.filters import DEPTH_MAX, LENGTH_MAX, WORDS_MAX
from leasekit.core.properties import BYTES_MAX, KEY_MAX, PROPERTIES_MAX, VALUE_MAX, Properties
from leasekit.core.protocol.messages import NEW, Redeem, RequestTicket
from leasekit.core.steps import Action
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must

SCRIPTS: Final = (
    "\u00e9", "e\u0301", "\u202etxt.exe", "\u540d\u524d", "\U0001f469\u200d\U0001f680", "\ufeff", "\u00df", "\u2028",
    "I\u0307", "\U0010ffff",
)  # fmt: skip
"""Text that some programs make other text of: composed and not, from right to left, joined, invisible, in two cases."""
MARKUP: Final = (
    "<unit a='&quot;'>]]></unit>", "'; DROP TABLE leases; --", "$(reboot) `reboot` ${IFS}", "%s{0}%n",
    "../../etc/passwd", "null", "1e400", "-0", " ", "a\tb\nc", "*)(uid=*", "dhcp-option=3\n",
)  # fmt: skip
"""What drivers would put into files and questions, if they took it as it is."""


def _many(rng: Random) -> dict[str, str]:
    return {f"key-{number}": str(rng.random()) for number in range(PROPERTIES_MAX - 8)}


def _long(rng: Random) -> dict[str, str]:
    return {"k" * KEY_MAX: "v" * VALUE_MAX, "long": "w" * VALUE_MAX, "longer": " " * VALUE_MAX}


def _wide(rng: Random) -> dict[str, str]:
    return {"wide": "\U0010ffff" * ((BYTES_MAX - 4096) // 4)}


def _scripts(rng: Random) -> dict[str, str]:
    return {key: rng.choice(SCRIPTS) for key in SCRIPTS}


def _markup(rng: Random) -> dict[str, str]:
    return {f"markup-{number}": text for number, text in enumerate(rng.sample(MARKUP, 6))}


KINDS: Final[Sequence[Callable[[Random], dict[str, str]]]] = (_many, _long, _wide, _scripts, _scripts, _markup, _markup)


def odd_properties(rng: Random) -> dict[str, str]:
    """Properties that are allowed, up to each limit."""
    return rng.choice(KINDS)(rng)


def costly_filter(rng: Random) -> str:
    """A filter that is as long, as deep or as dear as it may be; now and then a little more, which is refused."""
    over = rng.choice((0, 0, 0, 1))
    comparisons = " or ".join(f"rack == r{number}" for number in range(WORDS_MAX // 4 + over))
    nested = f"{'(' * (DEPTH_MAX + over)}rack != r9{')' * (DEPTH_MAX + over)}"
    members = f"rack in {{r0, {', '.join(['r1'] * (WORDS_MAX // 2 - 3))}}}".ljust(LENGTH_MAX + over)
    return rng.choice((comparisons, nested, members))


class WordChecker(Listening):
    """A request goes to its broker with the properties that were asked for. A site hears the configuration that its
    guest's operator has said, whole, and drivers are told one that the site has heard.
    """

    kind = "words"

    def __init__(self, sites: Sequence[str], guests: frozenset[str]) -> None:
        super().__init__()
        self._sites, self._guests = frozenset(sites), guests
        self.sends = {RequestTicket: self._request, Redeem: self._redeem}
        self.receives = {Redeem: self._redeemed}
        self._asked: dict[str, Properties] = {}
        self._said: dict[str, dict[str, set[str]]] = {}
        self._heard: dict[tuple[str, str], list[Properties]] = {}

    def told(self, lease: str, properties: Properties, configuration: Properties) -> None:
        """A request was acknowledged."""
        self._asked[lease] = properties
        self._said[lease] = {key: {value} for key, value in configuration.items()}

    def changes(self, lease: str, configuration: Properties) -> None:
        """The lease's configuration is changed, if its guest hears that."""
        for key, values in self._said.get(lease, {}).items():
            values.update(configuration.get(key, value) for value in list(values))

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        asked = self._asked.get(message.lease)
        if asked is not None and message.op == NEW and sender in self._guests:
            fine = asked.items() <= message.properties.items()
            must(fine, f"{sender} asks {receiver} for {message.lease} with {_brief(message.properties)}")

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        for key, values in self._said.get(message.lease, {}).items() if sender in self._guests else ():
            value = message.properties.get(key)
            what = f"{sender} tells {receiver} for {message.lease} {key!r:.80} = {value!r:.80}"
            must(value in values, f"{what}, which nobody said")

    def _redeemed(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        self._heard.setdefault((receiver, message.lease), []).append(message.properties)

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Check what a site's driver is told of a lease."""
        if actor in self._sites and action.op in ("setup", "modify"):
            heard = self._heard.get((actor, action.lease), [])
            what = f"{actor}: {action.op} of {action.unit} for {action.lease}"
            must(action.configuration in heard, f"{what} with {_brief(action.configuration)}, which nobody said")


def _brief(properties: Any) -> str:
    return ", ".join(f"{key!r:.40}: {value!r:.40}" for key, value in sorted(properties.items())[:8])
