# Runs on a machine that is to be a hypervisor, as root: libvirt and QEMU, and its network card on a bridge. Where the
# image has both already it changes nothing.
set -eu
if ! [ -S /run/libvirt/libvirt-sock ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q update
    apt-get -q install -y --no-install-recommends libvirt-daemon-system qemu-system-x86 qemu-utils
    systemctl enable --now libvirtd.socket
fi
if ! [ -d /sys/class/net/br0 ]; then
    card=$(ip -o -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
    gateway=$(ip -o -4 route show default | sed -n 's/.* via \([^ ]*\).*/\1/p' | head -n 1)
    ip link add br0 type bridge
    ip link set br0 address "$(cat "/sys/class/net/$card/address")"
    # In one go, for this connection is by that card.
    ip link set br0 up
    ip link set "$card" master br0
    for address in $(ip -o addr show dev "$card" scope global | awk '{ print $4 }'); do
        ip addr add "$address" dev br0
        ip addr del "$address" dev "$card"
    done
    [ -z "$gateway" ] || ip route replace default via "$gateway" dev br0
fi
