"""Messages that are handed over as they are: actors share nothing that one of them changes, so a run is the same."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from leasekit.config.deployment import Deployment
from leasekit.config.load import load
from leasekit.core.protocol.codec import encode_batch
from leasekit.core.protocol.messages import Message
from leasekit.core.steps import ActorLike, Input, Received
from leasekit.core.time import HOUR
from leasekit.emulation.clocks import Clock, Clocked
from leasekit.emulation.emulated import Emulated
from leasekit.emulation.experiment import result_of
from leasekit.emulation.pictures import emulation_of

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = ("emulation/month.toml", "emulation/activation.toml", "emulation/compete.toml", "hosts/hosts.toml")
MIX = """
deployment.signatures = false
[actor.site]
role = "authority"
mapper = { name = "yield" }
[[actor.site.inventory]]
type = "host"
units = 4
capacity = { cpu = 8, memory = "32GiB" }
[[actor.site.inventory]]
type = "node"
units = 6
[actor.site.driver.imagined]
kind = "null"
save = true
latency = { setup = "20s", teardown = "5s", modify = "1s" }
failure = { setup = 0.1 }
[[actor.site.delegation]]
broker = "upper"
type = "host"
[[actor.site.delegation]]
broker = "upper"
type = "node"

[actor.upper]
role = "broker"
mapper = { name = "backfill", suspension = "all", least_run = "1m" }
[[actor.upper.delegation]]
broker = "lower"
type = "node"
units = 2

[actor.lower]
role = "broker"

[actor.machines]
role = "guest"
settings.default_broker = "upper"
mapper.name = "static"
[[actor.machines.mapper.demands]]
type = "host"
units = 3
term = "1h"
properties = { "needs.cpu" = "3000", "needs.memory" = "4096" }
[[actor.machines.mapper.demands]]
type = "host"
name = "anew"
units = 5
term = "40m"
renew = "anew"
properties = { "needs.cpu" = "2000", "needs.memory" = "8192" }

[actor.batch]
role = "guest"
settings.default_broker = "upper"
mapper.name = "static"
[[actor.batch.mapper.demands]]
type = "node"
units = 4
term = "3h"
renew = "anew"
properties = { preemptible = "true", deferrable = "true", suspend = "10s" }

[actor.web]
role = "guest"
settings.default_broker = "upper"
mapper.name = "static"
[[actor.web.mapper.demands]]
type = "node"
units = 3
start = "30m"
term = "1h"
renew = "anew"

[actor.small]
role = "guest"
settings.default_broker = "lower"
mapper = { name = "static", demands = [{ type = "node", count = 3, term = "1h" }] }

[emulation]
horizon = "8h"
seed = 3
"""


class Keeping(Clocked):
    """Keeps each message that its actor gets, beside how it was on the wire then."""

    def __init__(self, actor: ActorLike, got: list[tuple[Message, bytes]]) -> None:
        super().__init__(actor, Clock())
        self._got = got

    def step(self, input: Input) -> None:
        """As the actor's."""
        if isinstance(input, Received):
            self._got.append((input.message, encode_batch([input.message])))
        super().step(input)


def emulated(deployment: Deployment, copies: bool) -> tuple[str, Mapping[str, Any], list[tuple[Message, bytes]]]:
    """The log of eight hours, what came of them, and the messages that were got. With ``copies`` rows are made whole,
    as for who observes them.
    """
    log = io.StringIO()
    made = Emulated(deployment, log=log, synthetic=True, observe=(lambda *_: None) if copies else None)
    assert not made.world.copies, "they are handed over where nobody signs, and nothing goes wrong"
    made.world.copies = copies
    got: list[tuple[Message, bytes]] = []
    for node in made.world.nodes.values():
        node.actor = Keeping(node.actor, got)
    made.world.run_until(made.world.now + 8 * HOUR)
    return log.getvalue(), result_of(made, emulation_of(deployment).runs[-1], "", {}).summary, got


@pytest.mark.parametrize("name", [*FILES, "mix"])
def test_nothing_is_shared_that_changes(name: str, tmp_path: Path) -> None:
    """No message that was handed over is another one by the end of the run, and log and summary are those of copied
    messages and whole rows to the byte.
    """
    file = tmp_path / "mix.toml"
    file.write_text(MIX)
    deployment = load(DEPLOY / name if name != "mix" else file, tmp_path, {"deployment.signatures": False})
    deployment = deployment.with_run(emulation_of(deployment).runs[-1])
    *came, got = emulated(deployment, copies=False)
    *came_of_copies, got_copies = emulated(deployment, copies=True)
    assert len(got) > 20, "there is something to hold"
    assert [encode_batch([message]) for message, _ in got] == [then for _, then in got]
    assert (came, [then for _, then in got]) == (came_of_copies, [then for _, then in got_copies])
