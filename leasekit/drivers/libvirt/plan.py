"""What a unit is to be, worked out from the site's settings and the properties of its lease before anything is touched.

Properties come from guests as well as from the site. Names of hosts, addresses and files are never taken from them;
what a lease may choose is checked here against the site's lists, and raises ``DriverError`` that no retry helps.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Final
from uuid import UUID, uuid5

import attrs

from leasekit.core.drivers import LEASE, UNIT, UNIT_CAP, UNIT_HOST, Blame, DriverError, UnitContext
from leasekit.core.properties import CAPACITY, CPU, MEMORY, NEEDS, THOUSAND, amount, vector
from leasekit.core.settings import expect_one_of
from leasekit.drivers.libvirt.settings import (
    MEMORY_LEAST,
    Choices,
    Image,
    LibvirtSettings,
    MachineSettings,
    NetworkSettings,
    Size,
)
from leasekit.drivers.names import check_unit_id

LOGIN_KEYS: Final = "slice.key"
"""The property with the public keys that may log in, in OpenSSH's format, a line each."""
KEYS_MAX: Final = 64

_NAMESPACE: Final = UUID("5b0e8f5e-2a7e-4b8e-9f0c-6c1f1d6a7e21")
_NUMBER: Final = re.compile(r"\d{1,9}")
_TRAILING: Final = re.compile(r"(\d{1,9})$")
_KEY_TYPES: Final = re.compile(
    r"ssh-(ed25519|rsa)|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com"
)
_COMMENT: Final = re.compile(r"[^A-Za-z0-9@._+-]")


@attrs.frozen(kw_only=True)
class UnitPlan:
    """One unit as it is to be. ``addresses`` are with the length of their prefix, one for each of the subnets."""

    unit: str
    lease: str
    type: str
    number: int
    image_name: str
    image: Image
    size: Size
    most: Size
    """What vCPUs and memory the domain can grow to while it runs."""
    hostname: str
    addresses: tuple[str, ...]
    keys: tuple[str, ...]
    mac: str
    uuid: str

    @property
    def instance(self) -> str:
        """What cloud-init tells one incarnation of a unit from the next by."""
        return self.uuid


def make_plan(unit: UnitContext, settings: LibvirtSettings) -> UnitPlan:
    """The plan for a unit. Raises ``DriverError``."""
    # Locally administered.
    return plan_of(unit, settings, lambda size: _most(size, settings), namespace=_NAMESPACE, vendor="02:")


def plan_of(
    unit: UnitContext, settings: MachineSettings, most: Callable[[Size], Size], *, namespace: UUID, vendor: str
) -> UnitPlan:
    """The plan for a unit that can grow to ``most``, with an address of ``vendor`` on its network card. Raises
    ``DriverError``.
    """
    name = check_unit_id(unit.unit)
    image_name = unit.chosen.get("image", settings.default_image)
    if image_name not in settings.images:
        raise refused("image", image_name, expect_one_of(image_name[:80], settings.images), unit.blame("image"))
    size, choices = settings.size, settings.choices
    if host_of(unit):
        size, choices = placed_size(unit, size, choices)
    size = chosen_size(unit, size, choices)
    whose = f"{settings.prefix}{name}"
    return UnitPlan(
        unit=name,
        lease=unit.lease,
        type=unit.type,
        number=unit.number,
        image_name=image_name,
        image=settings.images[image_name],
        size=size,
        most=most(size),
        hostname=host_name(name, settings.domain),
        addresses=unit_addresses(name, settings.network) if settings.network is not None else (),
        keys=login_keys(unit.chosen.get(LOGIN_KEYS, ""), unit.blame(LOGIN_KEYS)),
        # The same for a unit whoever leases it: no switch has to learn anew.
        mac=vendor + blake2b(whose.encode(), digest_size=6 - vendor.count(":")).digest().hex(":"),
        uuid=str(uuid5(namespace, f"{whose}\n{unit.lease}\n{unit.number}")),
    )


def refused(key: str, found: str, expected: str, blame: Blame) -> DriverError:
    """The error for a property whose value can't be used; fit for one line whatever was found."""
    return DriverError(f"property {key}: found {found[:80]!a}, {expected}", retry=False, blame=blame)


def host_of(unit: UnitContext) -> str:
    """The host on which a site has the unit: a machine's, or the unit itself where that is a host, leased whole; empty
    where the site knows of no hosts.
    """
    is_host = any(key.startswith(CAPACITY) for key in unit.properties)
    return unit.properties.get(UNIT_HOST, unit.unit if is_host else "")


def placed_size(unit: UnitContext, size: Size, choices: Choices) -> tuple[Size, Choices]:
    """What a unit has of its host where nothing else is chosen, and what can be: a machine what it needs, one that has
    the host alone what that has for leases.

    Its cap is as the site's mapper says, rounded up to whole percent. Nobody chooses cap and memory, which are counted.
    Raises ``DriverError`` for a machine that asks for no memory, or too little, of a host whose memory is counted.
    """
    has = vector(unit.properties, CAPACITY)
    takes = vector(unit.properties, NEEDS) if UNIT_HOST in unit.properties else has
    memory, least = amount(takes, MEMORY), MEMORY_LEAST
    if (memory or amount(has, MEMORY)) and memory < least:
        key = NEEDS + MEMORY
        raise refused(key, unit.properties.get(key, ""), f"expected at least {least}, in MiB", LEASE)
    cap = int(unit.properties.get(UNIT_CAP, "-1"))
    changed = attrs.evolve(
        size,
        vcpus=_ceiling(amount(takes, CPU), THOUSAND) or size.vcpus,
        memory_mb=memory or size.memory_mb,
        cap=max(_ceiling(cap, THOUSAND // 100), 1) if cap >= 0 else 0,
    )
    return changed, attrs.evolve(choices, cap=None, memory_mb=None if memory else choices.memory_mb)


def _ceiling(much: int, of: int) -> int:
    return -(-much // of)


def chosen_size(unit: UnitContext, size: Size, choices: Choices) -> Size:
    """The site's ``size``, but for what ``choices`` let the properties say. Raises ``DriverError``."""
    changes, properties = {}, unit.chosen
    for key in ("vcpus", "memory_mb", "cap", "shares"):
        choice: tuple[int, int] | None = getattr(choices, key)
        if choice is None or key not in properties:
            continue
        changes[key] = chosen_number(key, properties[key], *choice, unit.blame(key))
    return attrs.evolve(size, **changes)


def chosen_number(key: str, text: str, least: int, most: int, blame: Blame = UNIT) -> int:
    """The whole number that a property is. Raises ``DriverError``."""
    if _NUMBER.fullmatch(text) is None or not text.isascii() or not least <= int(text) <= most:
        raise refused(key, text, f"expected a whole number from {least} to {most}", blame)
    return int(text)


def _most(size: Size, settings: LibvirtSettings) -> Size:
    choices, grows = settings.choices, settings.memory_grows
    vcpus = size.vcpus if choices.vcpus is None else choices.vcpus[1]
    # A guest gets at all of the memory that its domain can grow to: that it asks for no more is up to itself.
    memory = choices.memory_mb[1] if choices.memory_mb is not None and grows else size.memory_mb
    return attrs.evolve(size, vcpus=max(vcpus, size.vcpus), memory_mb=max(memory, size.memory_mb))


def host_name(unit: str, domain: str) -> str:
    """The name of a unit as DNS allows it: small letters, digits and dashes, and the site's domain."""
    label = re.sub(r"[^a-z0-9]+", "-", unit.lower()).strip("-")
    return f"{label}.{domain}" if domain else label


def unit_addresses(unit: str, network: NetworkSettings) -> tuple[str, ...]:
    """A unit's addresses, by the site's table or by the number in its name. Raises ``DriverError``."""
    networks = network.networks()
    if network.block:
        return ()  # the address book has them
    if unit in network.addresses:
        return tuple(
            f"{address}/{net.prefixlen}" for address, net in zip(network.addresses[unit], networks, strict=True)
        )
    if not networks:
        return ()
    found = _TRAILING.search(unit)
    if found is None:
        text = f"unit {unit}: its name ends in no number, so network.addresses must say which addresses it has"
        raise DriverError(text, retry=False)
    offset = network.first + int(found[1])
    addresses = []
    for net in networks:
        last = net.num_addresses - (2 if net.version == 4 else 1)
        if offset > last:
            raise DriverError(f"unit {unit}: {net} has no address {offset}, the last is {last}", retry=False)
        addresses.append(f"{net.network_address + offset}/{net.prefixlen}")
    return tuple(addresses)


def login_keys(text: str, blame: Blame = LEASE) -> tuple[str, ...]:
    """Public keys from text of a guest: type, key and what is left of the comment. Raises ``DriverError``.

    Options before a key (``command=...``) are refused: who leases a unit has no say in how its ssh server runs.
    """
    keys = []
    for line in text.splitlines():
        words = line.split(None, 2)
        if not words or line.lstrip().startswith("#"):
            continue
        if len(words) < 2 or _KEY_TYPES.fullmatch(words[0]) is None or not _is_key(words[0], words[1]):
            expected = "expected a public key of OpenSSH in each line, without options"
            raise refused(LOGIN_KEYS, line, expected, blame)
        comment = _COMMENT.sub("_", words[2])[:64] if len(words) == 3 else ""
        keys.append(" ".join(filter(None, (words[0], words[1], comment))))
    if len(keys) > KEYS_MAX:
        raise DriverError(f"property {LOGIN_KEYS}: found {len(keys)} keys, at most {KEYS_MAX} are allowed", blame=blame)
    return tuple(keys)


def _is_key(kind: str, encoded: str) -> bool:
    """Whether the key's own bytes begin with its type, as RFC 4253 section 6.6 has it."""
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    return blob.startswith(len(kind).to_bytes(4, "big") + kind.encode()) and len(blob) > len(kind) + 4


def keys_digest(keys: tuple[str, ...]) -> str:
    """What tells one set of login keys from another."""
    return sha256("\n".join(keys).encode()).hexdigest()[:16]
