"""What a deploy file says of connections: TLS for each address, and the limits of the transport."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from deploy_texts import SMALL, changed, faults, write

from leasekit.config.build import build
from leasekit.config.identities import prepare
from leasekit.config.load import load
from leasekit.config.sockets import can_be_dialled, place, resolve_address, without_tls
from leasekit.config.tables import TransportSettings
from leasekit.runtime.sockets import Endpoint, parse_endpoint

PEER = f'\n[peer.other]\nrole = "guest"\nkey = "{"ab" * 32}"\n'


def listening(value: str) -> str:
    """The small deployment with a guest that listens."""
    return changed(('role = "guest"', f'role = "guest"\nlisten = {value}'))


@pytest.mark.parametrize(
    ("value", "endpoint"),
    [
        ('["tcp://h:7"]', Endpoint(host="h", port=7)),
        ('[{ address = "tcp://h:7" }]', Endpoint(host="h", port=7)),
        ('[{ address = "tcp://h:7", tls = true }]', Endpoint(host="h", port=7)),
        ('[{ address = "tcp://h:7", tls = false }]', Endpoint(host="h", port=7, tls=False)),
        ('[{ address = "tcp://[::1]:0", tls = false }]', Endpoint(host="::1", port=0, tls=False)),
        ('[{ address = "unix:/x", tls = false }]', Endpoint(path="/x")),
        ('["unix:/x"]', Endpoint(path="/x")),
    ],
)
def test_tls_is_on_unless_switched_off(tmp_path: Path, value: str, endpoint: Endpoint) -> None:
    """TCP has TLS unless the address says otherwise, a Unix socket has none; the runtime reads it the same way."""
    (address,) = load(write(tmp_path, listening(value))).actors["guest"].listen
    found = parse_endpoint(address)
    assert found == endpoint
    assert found.encrypted == (not endpoint.path and endpoint.tls)


def test_who_dials_in_the_same_file_knows(tmp_path: Path) -> None:
    """Actors of one file dial each other as the listening one has it, peers as their table has it."""
    text = listening('[{ address = "tcp://h:7", tls = false }]') + PEER + 'address = "tcp://p:8"\ntls = false\n'
    deployment = load(write(tmp_path, text))
    links = {link.name: link.address for link in build(deployment, "broker", keys=prepare(deployment)).peers}
    assert links["guest"] == "tcp://h:7?tls=false"
    assert links["other"] == "tcp://p:8?tls=false"
    assert links["site"].startswith("unix:")


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (listening('[{ address = "unix:x", tls = true }]'), "actor.guest.listen[0].tls", "no tls for a Unix socket"),
        (listening('[{ address = "tcp://h:7", tls = "no" }]'), "actor.guest.listen[0].tls", "true or false"),
        (listening('[{ address = "tcp://h:7", tsl = false }]'), "actor.guest.listen[0].tsl", "did you mean tls?"),
        (listening("[{ tls = false }]"), "actor.guest.listen[0].address", "text in quotes"),
        (listening('["tcp://h:7?tls=false"]'), "actor.guest.listen[0]", "unix:PATH or tcp://HOST:PORT"),
        (
            listening('["tcp://h:7", { address = "tcp://h:7", tls = false }]'),
            "actor.guest.listen[1]",
            "actor.guest.listen[0] has",
        ),
        (SMALL + PEER + 'address = "unix:x"\ntls = true\n', "peer.other.tls", "no tls for a Unix socket"),
        (SMALL + PEER + 'address = "tcp://x:0"\ntls = false\n', "peer.other.address", "a port to dial"),
        (SMALL + "[actor.guest.transport]\nheartbeat = 0\n", "actor.guest.transport.heartbeat", ">= 1"),
        (SMALL + '[actor.guest.transport]\nheartbeat = "20s"\n', "actor.guest.transport.heartbeat", "half of silence"),
        (SMALL + '[actor.guest.transport]\nbackoff_min = "1h"\n', "actor.guest.transport.backoff_min", "backoff_max"),
        (
            SMALL + "[actor.guest.transport]\nunauthenticated_max = 1\n",
            "actor.guest.transport.unauthenticated_max",
            ">= 2",
        ),
        (SMALL + "[actor.guest.transport]\nframe_max = 100\n", "actor.guest.transport.frame_max", ">= 4096"),
        (SMALL + "[actor.guest.transport]\nframe_max = 99999999\n", "actor.guest.transport.frame_max", "<= 4194304"),
        (SMALL + '[actor.guest.transport]\nsilence = "x"\n', "actor.guest.transport.silence", "a duration"),
        (
            SMALL + "[actor.guest.transport]\nmesages_burst = 1\n",
            "actor.guest.transport.mesages_burst",
            "messages_burst?",
        ),
    ],
)
def test_faults_name_the_key(tmp_path: Path, text: str, key: str, words: str) -> None:
    """What can't be is refused with the key, and what is allowed."""
    found = faults(write(tmp_path, text))
    assert list(found) == [key]
    assert words in found[key]


def test_limits_of_the_transport(tmp_path: Path) -> None:
    """Each key of the table ends in the actor's settings; what is not given keeps its default."""
    given = "[actor.guest.transport]\nsilence = '1m'\nmessages_per_second = 5\nqueue_max = 100\n"
    actors = load(write(tmp_path, SMALL + given)).actors
    assert actors["site"].table.transport == TransportSettings()
    assert actors["guest"].table.transport == attrs.evolve(
        TransportSettings(), silence=60_000, messages_per_second=5, queue_max=100
    )


def test_addresses_say_all() -> None:
    """A resolved address says whether TLS is spoken, where it is, and whether it can be dialled."""
    plain = resolve_address("tcp://h:7", Path("/s"), False)
    assert plain == "tcp://h:7?tls=false"
    assert (without_tls(plain), place(plain), can_be_dialled(plain)) == (True, "tcp://h:7", True)
    assert not can_be_dialled(resolve_address("tcp://h:0", Path("/s"), False))
    odd = resolve_address("unix:x?tls=false", Path("/s"))
    assert (odd, without_tls(odd), place(odd)) == ("unix:/s/x?tls=false", False, odd)
