"""What a deploy file says otherwise than the actor that runs: by key, what it takes now, and what waits for a restart.

An actor is made anew from its records with what it takes; the process that runs it keeps its sockets, its key and its
store, so what concerns these stays as it was until the process is started again. Other actors of a file are this one's
peers: of their tables counts where they are, and whose key they have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.config.load import load, resolve_document

FIXED: Final = frozenset({"role", "key", "listen", "control", "store", "log", "metrics", "shell", "transport"})
"""Keys of an actor's table that take a restart."""
FIXED_SETTINGS: Final = frozenset({"clock_skew", "history_kept", "history_max"})
"""Keys of its settings that do: the process's clock, its connections and its store have them, too."""
VALUE_SHOWN: Final = 200
"""How many characters of a value are shown."""
_OF_A_PEER: Final = ("role", "key", "listen")


@attrs.frozen(kw_only=True)
class ChangedKey:
    """One ``key`` that a file gives another value; ``before`` and ``after`` are as a file has them, empty for none."""

    key: str
    before: str
    after: str
    restart: bool

    def __str__(self) -> str:
        how = " (needs a restart)" if self.restart else ""
        return f"{self.key}: {self.before or 'nothing'} -> {self.after or 'nothing'}{how}"


def reread(deployment: Deployment, name: str) -> tuple[Deployment, list[ChangedKey]]:
    """The file of ``deployment`` as it is now, with what it says of the running actor ``name`` and can't be taken
    without a restart left as it was; and all that is said otherwise. Raises :class:`~.errors.ConfigErrors`.
    """
    now = load(deployment.file, deployment.state)
    taken = _taken(deployment.document, now.document, name)
    changes = [
        *_changes(deployment.document, taken, name, restart=False),
        *_changes(taken, now.document, name, restart=True),
    ]
    return resolve_document(deployment.file, deployment.state, taken, {}), changes


def gone(name: str, role: str) -> ChangedKey:
    """That an actor runs of which its file says nothing any more."""
    return ChangedKey(key=f"actor.{name}", before=json.dumps(role), after="", restart=True)


def reread_actors(
    deployment: Deployment, gateway: str, known: Mapping[str, str]
) -> tuple[Mapping[str, ActorSpec], list[ChangedKey]]:
    """The actors that the file of ``deployment`` has by now; and all that it says otherwise of the actors that are
    ``known`` to its running gateway, each with its role, and of the gateway. Raises :class:`~.errors.ConfigErrors`.
    """
    now = load(deployment.file, deployment.state)
    own, by_now = ({gateway: one.document["actor"].get(gateway, {})} for one in (deployment, now))
    before, after = ({name: {"role": role} for name, role in roles.items()} for roles in (known, _roles(now)))
    return now.actors, [
        *_changes({"actor": before}, {"actor": after}, gateway, restart=False),
        *_changes({"actor": own}, {"actor": by_now}, gateway, restart=True),
    ]


def _roles(deployment: Deployment) -> dict[str, str]:
    return {one.name: one.role for one in deployment.actors.values()}


def _taken(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The document ``after``, but for what can't be taken while the actor runs."""
    was = before["actor"][name]
    now = after["actor"].get(name)
    if now is None or now.get("role") != was.get("role"):
        own = was
    else:
        settings = _with(now.get("settings", {}), was.get("settings", {}), FIXED_SETTINGS)
        own = {**_with(now, was, FIXED), "settings": settings}
    return {**_with(after, before, frozenset({"deployment"})), "actor": {**after["actor"], name: own}}


def _with(now: Mapping[str, Any], was: Mapping[str, Any], kept: frozenset[str]) -> dict[str, Any]:
    """The table ``now``, with the keys that are ``kept`` as they were."""
    rest = {key: value for key, value in now.items() if key not in kept}
    return {**rest, **{key: value for key, value in was.items() if key in kept}}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], name: str, *, restart: bool) -> Iterator[ChangedKey]:
    was, now = dict(_leaves(_seen(old, name), "")), dict(_leaves(_seen(new, name), ""))
    for key in dict.fromkeys((*was, *now)):
        if was.get(key) != now.get(key):
            before, after = _short(was.get(key, "")), _short(now.get(key, ""))
            yield ChangedKey(key=key, before=before, after=after, restart=restart)


def _seen(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What of a document concerns the actor ``name``."""
    actors = {
        other: table if other == name else {key: table[key] for key in _OF_A_PEER if key in table}
        for other, table in document["actor"].items()
    }
    seen = {key: document[key] for key in ("deployment", "peer") if key in document}
    return {**seen, "actor": actors}


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """The values in a document by their keys, as errors call them."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        for index, one in enumerate(value):
            yield from _leaves(one, f"{key}[{index}]")
    else:
        yield key, json.dumps(value, default=str, ensure_ascii=False)


def _short(text: str) -> str:
    return text if len(text) <= VALUE_SHOWN else f"{text[:VALUE_SHOWN]}..."
