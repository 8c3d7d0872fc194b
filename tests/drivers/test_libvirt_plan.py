"""What the libvirt driver takes from settings and from the properties of leases, and what it makes of them."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.drivers import DriverError, UnitContext
from leasekit.core.settings import SettingsError, structure
from leasekit.drivers.libvirt.cpio import archive, directory, file
from leasekit.drivers.libvirt.documents import DomainMachine, Paths, cap_quota, domain_xml, volume_xml
from leasekit.drivers.libvirt.place import boot_sector, claims_kvm
from leasekit.drivers.libvirt.plan import UnitPlan, host_name, login_keys, make_plan, unit_addresses
from leasekit.drivers.libvirt.record import URN, make_record, read_record
from leasekit.drivers.libvirt.seed import initramfs_seed, make_host_key, nocloud_files
from leasekit.drivers.libvirt.settings import LibvirtSettings, NetworkSettings

DISK = {"disk": {"file": "/images/debian.qcow2", "sha256": "0" * 64}}
GIVEN: dict[str, Any] = {
    "hosts": {"a": {"uri": "qemu:///system"}},
    "images": {"debian": DISK, "tiny": {**DISK, "agent": True}},
    "image": "debian",
    "network": {"bridge": "br0", "subnets": ["10.1.0.0/24", "fd00:1::/64"], "gateways": ["10.1.0.1"]},
    "choices": {"vcpus": [1, 4], "cap": [0, 400]},
}
KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)).decode()
QEMU = DomainMachine("qemu")
HOSTILE = [
    "../../etc/passwd", "$(touch /tmp/x)", "`id`", "a;b", "</name><name>x", "&lt;", '"', "'", "]]>", "<!--", "\n",
    "a\0b", "\x1b[2J", "\u202e", "é", "\ud83d\ude00", " ", "-rf", "%s", "{}",
]  # fmt: skip


def settings(**changes: Any) -> LibvirtSettings:
    return structure(LibvirtSettings, {**GIVEN, **changes}, "vms")


def unit(name: str = "vm-1", **properties: str) -> UnitContext:
    return UnitContext(
        unit=name, type="vm", lease="lease-1", op="setup", number=1, properties=properties, log=lambda _: None
    )


def plan(name: str = "vm-1", **properties: str) -> UnitPlan:
    return make_plan(unit(name, **properties), settings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": {}}, "vms.hosts: .*"),
        ({"hosts": {"a/b": {"uri": "x"}}}, "hosts: found 'a/b'"),
        ({"hosts": {"a": {"uri": "x\ny"}}}, "vms.hosts.a.uri: .*one line"),
        ({"hosts": {"a": {"uri": "xen:///system"}}}, "vms.hosts.a.uri: found 'xen:///system', .*kind 'xen', by xl"),
        ({"hosts": {"a": {"uri": "xen+ssh://b/"}}}, "expected a uri of QEMU's, as qemu:///system; for Xen"),
        ({"hosts": {"a": {"uri": "x", "acceleration": "hvf"}}}, "acceleration: found 'hvf', expected one of"),
        ({"image": ""}, "image: found nothing, expected the default among: debian, tiny"),
        ({"image": "fedora"}, "image: found 'fedora', expected one of: debian, tiny"),
        ({"images": {"x": {}}}, "vms.images.x: expected a disk, a kernel or both"),
        ({"images": {"x": {"disk": {"file": "/x"}}}}, "vms.images.x.disk: found sha256 '', expected 64"),
        ({"images": {"x": {"disk": {"file": "/x", "volume": "y"}}}}, "expected one of file, url and volume"),
        ({"images": {"x": {"disk": {"url": "file:///etc/shadow", "sha256": "0" * 64}}}}, "begin with http:// or"),
        ({"images": {"x": {"disk": {"volume": "../y"}}}}, "expected the name of a volume, without slashes"),
        ({"images": {"x": {**DISK, "seed": "initramfs"}}}, 'seed = "initramfs" needs an initrd'),
        ({"images": {"x": {**DISK, "ready": "agent"}}}, 'ready = "agent" needs agent = true'),
        ({"images": {"x": {**DISK, "user": "Root; rm"}}}, "vms.images.x.user: "),
        ({"network": None}, 'images.debian: ready = "ssh" needs a network with subnets'),
        ({"network": {"bridge": "a", "network": "b"}}, "expected a bridge or a network, one of the two"),
        ({"network": {"bridge": "a", "subnets": ["10.0.0.1/24"]}}, "10.0.0.1/24 has host bits set"),
        ({"network": {"bridge": "a", "subnets": ["10.0.0.0/24"], "addresses": {"v": ["10.9.0.1"]}}}, "not in 10.0.0"),
        (
            {"network": {"bridge": "a", "subnets": ["fd::/64"], "addresses": {"v": ["fd::7"], "w": ["fd:0::7"]}}},
            "addresses.w: found fd::7, the address of unit v",
        ),
        ({"network": {"bridge": "a", "gateways": ["here"]}}, "'here' does not appear to be"),
        ({"choices": {"vcpus": [4, 1]}}, "vms.choices.vcpus: .*the least and the most"),
        ({"choices": {"vcpus": [2, 4]}}, "size.vcpus: found 1, which choices.vcpus does not allow"),
        ({"prefix": "a/b"}, "vms.prefix: found 'a/b'"),
        ({"domain": "x..y"}, "vms.domain: found 'x..y'"),
    ],
)
def test_settings_that_cannot_be_used_are_named(changes, message):
    """Each fault in a deploy file is told with its key, what was found and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        settings(**changes)
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("key", ["image", "vcpus", "cap", "slice.key"])
def test_hostile_properties_are_refused_in_one_line(key, hostile):
    """A property that is none of the site's choices is refused for good, in words that any log can hold."""
    if not hostile.strip() and key == "slice.key":
        assert plan(**{key: hostile}).keys == ()
        return
    with pytest.raises(DriverError, match=f"property {key}: found ") as caught:
        plan(**{key: hostile})
    assert not caught.value.retry
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ["host", "address", "addresses", "memory_mb", "shares", "uri", "pool", "disk", "mac"])
def test_what_the_site_does_not_offer_is_not_looked_at(key):
    """No property chooses hosts, addresses, files or sizes that the site does not let leases choose."""
    assert plan(**{key: "10.1.0.99"}) == plan()


def test_a_size_is_chosen_within_the_sites_bounds():
    """Sizes are the site's, but for those properties that the site lets leases choose, within its bounds."""
    made = plan(vcpus="3", cap="250", memory_mb="65536")
    assert (made.size.vcpus, made.size.cap, made.size.memory_mb) == (3, 250, 512)
    assert (made.most.vcpus, made.most.memory_mb) == (4, 512)
    for text in ("0", "5", "-1", "+1", "1.5", " 1", "1e3", "9" * 30, "\u0661", ""):
        with pytest.raises(DriverError, match=r"property vcpus: found .*, expected a whole number from 1 to 4"):
            plan(vcpus=text)


HOST = {"capacity.cpu": "16000", "capacity.memory": "65536"}


@pytest.mark.parametrize(
    ("properties", "vcpus", "memory_mb", "cap"),
    [
        ({"unit.host": "a", "needs.cpu": "1001", "needs.memory": "96"}, 2, 96, 0),
        ({"unit.host": "a", "needs.cpu": "2000", "needs.memory": "96", "unit.cap": "1501"}, 2, 96, 151),
        ({"unit.host": "a", "needs.memory": "96", "unit.cap": "0"}, 1, 96, 1),
        ({"unit.host": "a", "needs.memory": "96", "vcpus": "4", "cap": "300", "memory_mb": "4096"}, 4, 96, 0),
        ({}, 16, 65536, 0),
    ],
    ids=["needs", "capped", "cap of nothing", "guest's wishes", "whole host"],
)
def test_a_machine_has_what_it_needs_of_its_host(properties, vcpus, memory_mb, cap):
    """Whole vCPUs for its need of CPU, or as many as its lease may choose; its memory and cap are its site's to say."""
    given_ = settings(size={"cap": 50}, choices={"vcpus": [1, 4], "cap": [0, 400], "memory_mb": [16, 8192]})
    size = make_plan(unit(**HOST, **properties), given_).size
    assert (size.vcpus, size.memory_mb, size.cap) == (vcpus, memory_mb, cap)


def test_a_machine_asks_for_memory_where_that_is_counted():
    """It would have some that its host does not know of; where a host's is not counted, it has what the site says."""
    for needs in ({"needs.cpu": "1000"}, {"needs.memory": "15"}):
        with pytest.raises(
            DriverError, match=r"property needs.memory: found .*, expected at least 16, in MiB"
        ) as caught:
            plan(**HOST, **needs, **{"unit.host": "a"})
        assert caught.value.blame == "lease"
    assert plan(**{"capacity.cpu": "16000", "needs.cpu": "1000", "unit.host": "a"}).size.memory_mb == 512


def test_names_and_addresses_follow_from_the_units_name():
    """A unit has the addresses of its number in each subnet, or those of the table, and a name that DNS allows."""
    network = NetworkSettings(
        bridge="br0", subnets=("10.1.0.0/24", "fd00:1::/64"), addresses={"odd": ("10.1.0.200", "fd00:1::aa")}
    )
    assert unit_addresses("vm-7", network) == ("10.1.0.17/24", "fd00:1::11/64")
    assert unit_addresses("odd", network) == ("10.1.0.200/24", "fd00:1::aa/64")
    with pytest.raises(DriverError, match=r"ends in no number, so network.addresses must say"):
        unit_addresses("vm", network)
    assert unit_addresses("vm-244", network)[0] == "10.1.0.254/24"
    with pytest.raises(DriverError, match=r"10.1.0.0/24 has no address 255, the last is 254"):
        unit_addresses("vm-245", network)
    assert host_name("VM_3.a", "site.example") == "vm-3-a.site.example"


@given(st.text())
def test_login_keys_are_keys_or_refused(text):
    """Whatever a guest sends, what comes through is lines of a type, a key and a plain comment."""
    try:
        found = login_keys(text)
    except DriverError as error:
        assert str(error).isprintable()
        return
    assert found == ()


@given(st.text(max_size=40))
def test_comments_of_keys_are_made_plain(comment):
    """The comment of a login key loses everything that could mean something to a shell, YAML or XML."""
    one = " ".join(comment.split())
    for line in login_keys(f"{KEY} {one}\n# none\n\n"):
        assert re.fullmatch(re.escape(KEY) + r"( [A-Za-z0-9@._+-]+)?", line)


def test_options_of_keys_are_refused():
    """A key with options, of an unknown type, or whose bytes are of another type, is refused."""
    for line in (f'command="id" {KEY}', KEY.replace("ed25519", "dss"), KEY.replace("ssh-ed25519", "ssh-rsa"), KEY[:20]):
        with pytest.raises(DriverError, match=r"property slice.key: found .*, expected a public key of OpenSSH"):
            login_keys(line)
    with pytest.raises(DriverError, match="found 65 keys, at most 64"):
        login_keys(f"{KEY}\n" * 65)


@pytest.mark.parametrize("hostile", [text for text in HOSTILE if text.isprintable()])
def test_text_never_becomes_markup(hostile):
    """Whatever text a record, a path or a command line holds, the document has it as text, and nothing else."""
    made = attrs.evolve(plan(cap="50"), lease=hostile, type=hostile)
    made = attrs.evolve(made, image=attrs.evolve(made.image, command_line=hostile))
    paths = Paths(disk=hostile, seed=hostile, kernel=hostile, initrd=hostile, console=hostile)
    network = NetworkSettings(bridge="br0", subnets=("10.1.0.0/24",), filter="clean-traffic")
    record = make_record(made, "ssh-ed25519 AAAA")
    root = ElementTree.fromstring(domain_xml("leasekit-vm-1", made, record, QEMU, paths, network))
    plain = ElementTree.fromstring(domain_xml("x", plan(cap="50"), make_record(plan(), ""), QEMU, Paths(
        disk="d", seed="d", kernel="d", initrd="d", console="d"), network))  # fmt: skip
    assert [element.tag for element in root.iter()] == [element.tag for element in plain.iter()]
    assert root.findtext("os/kernel") == hostile == root.findtext("os/cmdline")
    unit_element = root.find(f"metadata/{{{URN}}}unit")
    assert unit_element is not None
    assert read_record(ElementTree.tostring(unit_element, encoding="unicode")) == record
    assert ElementTree.fromstring(volume_xml(hostile, 1, backing=(hostile, "raw"))).findtext("name") == hostile


@pytest.mark.parametrize("hostile", ["\n", "a\0b", "\x1b[2J", "\ud83d"])
def test_text_that_xml_cannot_hold_is_refused(hostile):
    """Control characters in what a record tells are refused, in words."""
    with pytest.raises(DriverError, match=r"lease: found .*, expected one line of printable text"):
        make_record(attrs.evolve(plan(), lease=hostile), "")


def test_a_domain_has_what_its_plan_says():
    """Size, cap, disk, network card and metadata of a domain are those of the plan and the settings."""
    made = plan(vcpus="2", cap="50")
    network = NetworkSettings(bridge="br0", subnets=("10.1.0.0/24", "fd00:1::/64"), filter="clean-traffic")
    text = domain_xml("leasekit-vm-1", made, make_record(made, "key"), QEMU, Paths(disk="/d", console="/c"), network)
    root = ElementTree.fromstring(text)
    assert (root.get("type"), root.findtext("name"), root.findtext("uuid")) == ("qemu", "leasekit-vm-1", made.uuid)
    vcpu = root.find("vcpu")
    assert vcpu is not None
    assert (vcpu.text, vcpu.get("current")) == ("4", "2")
    assert root.findtext("cputune/global_quota") == "50000" == str(cap_quota(50))
    assert [parameter.get("value") for parameter in root.iterfind(".//filterref/parameter")] == [
        "10.1.0.11",
        "fd00:1::b",
    ]
    assert root.find("devices/interface/mac[@address='%s']" % made.mac) is not None  # noqa: UP031
    test = DomainMachine("test")
    root = ElementTree.fromstring(
        domain_xml("x", made, make_record(made, ""), test, Paths(disk="/d", seed="/s", kernel="/k"), network)
    )
    assert [target.get("bus") for target in root.iterfind("devices/disk/target")] == ["virtio", "virtio"]
    assert root.find("cputune") is None
    assert root.find("devices/memballoon") is None


def test_a_plan_is_of_one_incarnation():
    """The same unit has one hardware address whoever leases it, and an identity of its own for each action."""
    first, again = plan(), make_plan(attrs.evolve(unit(), number=2), settings())
    other = plan("vm-2")
    assert first.mac == again.mac != other.mac
    assert len({first.uuid, again.uuid, other.uuid}) == 3
    assert re.fullmatch("02(:[0-9a-f]{2}){5}", first.mac)


def test_seeds_tell_a_guest_who_it_is():
    """Both kinds of seed carry the name, the addresses, the login keys and the host key, each of them parsable."""
    key, network = make_host_key(), settings().network
    made = plan(**{"slice.key": f"{KEY} me@here\n{KEY} you"})
    files = nocloud_files(made, key, network)
    head, _, user = files["user-data"].partition("\n")
    assert head == "#cloud-config"
    told = json.loads(user)
    assert told["ssh_keys"] == {"ed25519_private": key.private, "ed25519_public": key.public}
    assert (told["ssh_pwauth"], told["manage_etc_hosts"]) == (False, "localhost")
    assert told["users"][0]["ssh_authorized_keys"] == [f"{KEY} me@here", f"{KEY} you"]
    assert json.loads(files["meta-data"]) == {"instance-id": made.uuid, "local-hostname": "vm-1"}
    card = json.loads(files["network-config"])["ethernets"]["lease0"]
    assert card["addresses"] == ["10.1.0.11/24", "fd00:1::b/64"]
    assert card["routes"] == [{"to": "0.0.0.0/0", "via": "10.1.0.1"}]
    unpacked = unpack(initramfs_seed(made, key, network))
    assert unpacked["leasekit/authorized_keys"] == f"{KEY} me@here\n{KEY} you\n".encode()
    assert unpacked["leasekit/addresses"] == b"10.1.0.11/24\nfd00:1::b/64\n"
    assert unpacked["leasekit/ssh_host_ed25519_key"] == key.private.encode()
    assert key.private not in repr(key)


def unpack(data: bytes) -> dict[str, bytes]:
    """What an archive holds, read as Linux reads it (init/initramfs.c)."""
    found, at = {}, 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
        size, length = fields[6], fields[11]
        name = data[at + 110 : at + 110 + length - 1].decode()
        start = (at + 110 + length + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = data[start : start + size]
        at = (start + size + 3) // 4 * 4


@given(st.lists(st.tuples(st.text("abc/é", min_size=1), st.binary(max_size=50))))
def test_archives_hold_what_was_put_in(entries):
    """Whatever the lengths of names and contents, an archive is read back as it was written."""
    wanted = dict(entries)
    made = archive([directory("d"), *(file(f"f{name}", data) for name, data in wanted.items())])
    assert unpack(made) == {"d": b"", **{f"f{name}": data for name, data in wanted.items()}}
    assert len(made) % 512 == 0


def capabilities(*, kvm: bool = True, arch: str = "x86_64") -> str:
    kind = '<domain type="kvm"/>' * kvm
    cpu = f"<cpu><arch>{arch}</arch><model>EPYC</model></cpu>"
    return f"<capabilities><host>{cpu}</host><guest><arch>{kind}</arch></guest></capabilities>"


@pytest.mark.parametrize(
    ("given_", "flag", "claims"),
    [
        (capabilities(), "svm", True),
        (capabilities(), "vmx", True),
        (capabilities(), "sse3", False),
        (capabilities(kvm=False), "vmx", False),
        (capabilities(arch="aarch64"), "vmx", False),
        ("<capabilities/>", "vmx", False),
    ],
)
def test_kvm_needs_a_processor_that_runs_guests(given_, flag, claims):
    """KVM is not even tried where the processor, with all that its model implies, does not say that it runs guests."""
    assert claims_kvm(given_, lambda _: f"<cpu><feature name='{flag}'/></cpu>") is claims
    assert len(boot_sector()) == 512
