#!/bin/sh
# Makes (up) or removes (down) the network of shaped.toml: two sites and an exchange point that forwards between them.
# A second word is the beginning of the namespaces' names.
set -eu
prefix=${2:-lab-}

join() { # SITE SITE: a pair of interfaces, each named after where it leads
    ip link add "to-$2" netns "$prefix$1" type veth peer name "to-$1" netns "$prefix$2"
    ip -n "$prefix$1" link set "to-$2" up
    ip -n "$prefix$2" link set "to-$1" up
}

case ${1:-} in
up)
    for place in north x1 south; do
        ip netns add "$prefix$place"
        ip -n "$prefix$place" link set lo up
    done
    ip netns exec "${prefix}x1" sysctl -qw net.ipv4.ip_forward=1
    join north x1
    join south x1
    join north south
    ;;
down)
    for place in north x1 south; do
        if ip netns pids "$prefix$place" >/dev/null 2>&1; then ip netns del "$prefix$place"; fi
    done
    ;;
*)
    echo "usage: $0 up|down [PREFIX]" >&2
    exit 2
    ;;
esac
