"""The programs of the imaging environment: what a node runs to have its disk erased, written and read back.

``INIT`` brings a machine up that was started over the network; ``AGENT`` does the work, and tells of it over HTTP. It
asks for its job with a secret that its start was given: when the driver has thought better of it, the answer is 410,
and the agent ends without touching the disk any further. Both are for busybox; the agent has to lead its session.
"""

from __future__ import annotations

from typing import Final

SEED_SECTORS: Final = 16_384
"""The size of the partition for cloud-init's files, in sectors of 512 bytes."""
SEED_ROOM: Final = 2 * 2**20 + SEED_SECTORS * 512
"""What an image must leave of a disk where such a partition is added, in bytes: it and the second partition table."""
WORD_EVERY: Final = 5
"""Seconds between words of an agent that is busy."""

INIT: Final = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /sbin /usr/bin /usr/sbin
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/null >/dev/console 2>&1
while read -r module; do insmod "/lib/modules/$module" 2>/dev/null; done </modules
for word in $(cat /proc/cmdline); do
    case "$word" in
        leasekit.url=*) url=${word#*=} ;;
        leasekit.token=*) token=${word#*=} ;;
        leasekit.mac=*) mac=${word#*=} ;;
        leasekit.address=*) address=${word#*=} ;;
    esac
done
echo "imaging: waiting for the network card $mac"
card=
while [ -z "$card" ]; do
    for path in /sys/class/net/*; do
        [ "$(cat "$path/address" 2>/dev/null)" = "$mac" ] && card=${path##*/} && break
    done
    [ -n "$card" ] || sleep 0.2
done
ip link set lo up
ip link set "$card" up
ip addr add "$address" dev "$card"
echo "imaging: working for $url"
setsid sh /agent "$url" "$token"
echo "imaging: ended with status $?"
sync
poweroff -f
"""

AGENT: Final = f"""\
#!/bin/busybox sh
# Erases, writes and reads back a disk as the site's authority says: agent URL TOKEN
set -u
set -o pipefail
job="$1/job/$2"
work=$(mktemp -d)
finish() {{
    rm -rf "$work"
    exit "$1"
}}

# Fetches $1 of the job to the file $2, however long the authority is away; ends when the job is no more.
fetch() {{
    until wget -q -O "$2" "$job/$1" 2>"$work/error"; do
        grep -Eq ' (403|410) ' "$work/error" && finish 3
        sleep 1
    done
}}
say() {{
    until wget -q -O /dev/null --post-data "$1" "$job/report" 2>"$work/said"; do
        grep -Eq ' (403|410) ' "$work/said" && finish 3
        sleep 1
    done
}}
# From now on the authority hears now and then that $1 is under way.
doing() {{
    echo "imaging: $1"
    echo "$1" >"$work/doing"
    say "busy $1"
}}
talk() {{
    while sleep {WORD_EVERY} && [ -e "$work/doing" ]; do
        word=$(wget -q -O /dev/null --post-data "busy $(cat "$work/doing")" "$job/report" 2>&1)
        # A job that is no more must not go on writing: all of this session's group ends.
        case "$word" in *" 403 "* | *" 410 "*) kill -KILL 0 ;; esac
    done
}}
fail() {{
    echo "imaging: $1"
    say "failed $1"
    finish 2
}}
settle() {{
    sync
    if [ -b "$disk" ]; then
        blockdev --flushbufs "$disk"
        echo 3 >/proc/sys/vm/drop_caches
    fi
}}
is_zero() {{
    settle
    head -c "$size" /dev/zero | cmp -s - "$disk"
}}
zero() {{
    head -c "$size" /dev/zero | dd of="$disk" bs=1M iflag=fullblock conv=notrunc,fsync 2>"$work/dd" ||
        fail "$disk can't be erased: $(tail -n 1 "$work/dd")"
}}

fetch spec "$work/spec"
erase=no discard=no disk= image= image_sha256= seed= seed_sha256=
while read -r key value; do
    case "$key" in
        erase) erase=$value ;;
        discard) discard=$value ;;
        disk) disk=$value ;;
        image) image=$value ;;
        image_sha256) image_sha256=$value ;;
        seed) seed=$value ;;
        seed_sha256) seed_sha256=$value ;;
    esac
done <"$work/spec"

doing "looking for $disk"
talk &
left=60
until [ -e "$disk" ]; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || fail "there is no disk $disk; there are: $(awk 'NR > 2 {{print $4}}' /proc/partitions | xargs)"
    sleep 0.5
done
if [ -b "$disk" ]; then size=$(blockdev --getsize64 "$disk"); else size=$(stat -c %s "$disk"); fi
need=$image
[ -n "$image" ] && [ -n "$seed" ] && need=$((image + {SEED_ROOM}))
[ -z "$image" ] || [ "$need" -le "$size" ] || fail "disk full: $disk has $size bytes, the image needs $need"

if [ "$erase" = yes ]; then
    doing "erasing $disk"
    if [ "$discard" = yes ] && blkdiscard "$disk" 2>/dev/null && is_zero; then
        :
    else
        zero
        doing "reading back $disk"
        is_zero || fail "$disk was erased, and reads otherwise"
    fi
fi

if [ -n "$image" ]; then
    doing "writing the image to $disk"
    # An authority that goes away in the middle of it has it written from the start when it is back.
    while :; do
        rm -f "$work/lost"
        {{ wget -q -O - "$job/image" 2>"$work/error" || touch "$work/lost"; }} |
            dd of="$disk" bs=1M iflag=fullblock conv=notrunc,fsync 2>"$work/dd" ||
            fail "the image can't be written to $disk: $(tail -n 1 "$work/dd")"
        [ -e "$work/lost" ] || break
        grep -Eq ' (403|410) ' "$work/error" && finish 3
        sleep 1
    done
    doing "reading back the image"
    settle
    found=$(head -c "$image" "$disk" | sha256sum)
    found=${{found%% *}}
    [ "$found" = "$image_sha256" ] || fail "what is on $disk has the SHA-256 $found, expected $image_sha256"
fi

if [ -n "$image" ] && [ -n "$seed" ]; then
    doing "writing what the guest is told"
    fetch seed "$work/seed"
    # A table in two copies has its second one at the end of the image; it belongs to the end of the disk.
    sfdisk -q --relocate gpt-bak-std "$disk" 2>/dev/null
    start=$(((size / 512 - 2048 - {SEED_SECTORS}) / 2048 * 2048))
    echo "start=$start, size={SEED_SECTORS}" |
        sfdisk -q --append --no-reread --no-tell-kernel "$disk" 2>"$work/sfdisk" ||
        fail "no partition can be added to the image on $disk: $(tail -n 1 "$work/sfdisk")"
    dd if="$work/seed" of="$disk" bs=512 seek="$start" conv=notrunc,fsync 2>"$work/dd" ||
        fail "what the guest is told can't be written: $(tail -n 1 "$work/dd")"
    settle
    found=$(dd if="$disk" bs=512 skip="$start" count={SEED_SECTORS} 2>/dev/null | head -c "$seed" | sha256sum)
    [ "${{found%% *}}" = "$seed_sha256" ] || fail "what the guest is told reads otherwise on $disk"
fi
say "done"
echo "imaging: done"
finish 0
"""
