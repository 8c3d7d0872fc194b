"""The programs of the imaging environment: what a node runs to have its disk erased, written and read back.

``INIT`` brings a machine up that was started over the network; ``AGENT`` does the work, and tells of it over HTTP. It
asks for its job with a secret that its start was given: when the driver has thought better of it, the answer is 410,
and the agent ends without touching the disk any further. Both are for busybox; the agent has to lead its session.

What a disk is called by the kernel is a matter of chance. So the agent says what the disk says of itself, and touches
none while there is another that the site does not know of.
"""

from __future__ import annotations

from typing import Final

SEED_SECTORS: Final = 16_384
"""The size of the partition for cloud-init's files, in sectors of 512 bytes."""
SEED_ROOM: Final = 2 * 2**20 + SEED_SECTORS * 512
"""What an image must leave of a disk where such a partition is added, in bytes: it and the second partition table."""
WORD_EVERY: Final = 5
"""Seconds between words of an agent that is busy."""
MOVED: Final = "the guest's disk was"
"""How the report begins that a disk is to be erased which is not where it was."""
DISKS_QUIET: Final = 3
"""Seconds that no other disk has turned up for, until all are taken to be there."""

INIT: Final = f"""\
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
        leasekit.url=*) url=${{word#*=}} ;;
        leasekit.token=*) token=${{word#*=}} ;;
        leasekit.mac=*) mac=${{word#*=}} ;;
        leasekit.address=*) address=${{word#*=}} ;;
    esac
done
echo "imaging: waiting for the network card $mac"
card=
while [ -z "$card" ]; do
    for path in /sys/class/net/*; do
        [ "$(cat "$path/address" 2>/dev/null)" = "$mac" ] && card=${{path##*/}} && break
    done
    [ -n "$card" ] || sleep 0.2
done
ip link set lo up
ip link set "$card" up
ip addr add "$address" dev "$card"
# Disks turn up one after the other: none is to come when the agent has looked.
quiet=0 disks=
while [ "$quiet" -lt {DISKS_QUIET} ]; do
    sleep 1
    quiet=$((quiet + 1)) found=$(ls /sys/block)
    [ "$found" = "$disks" ] || quiet=0 disks=$found
done
echo "imaging: working for $url"
setsid sh /agent "$url" "$token"
echo "imaging: ended with status $?"
sync
poweroff -f
"""

AGENT: Final = f"""\
#!/bin/busybox sh
# Erases, writes and reads back a disk as the site's authority says: agent URL TOKEN [BLOCK DEV]
# The kernel tells of disks in BLOCK (/sys/block), and has them in DEV (/dev).
set -u
set -o pipefail
job="$1/job/$2"
block=${{3:-/sys/block}}
dev=${{4:-/dev}}
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
    say "failed $(echo "$1" | cut -c 1-900)"
    finish 2
}}

# What a disk says of itself, as one word; nothing where it says nothing.
word() {{
    tr -cs 'A-Za-z0-9._:+-' _ | sed 's/^_*//; s/_*$//' | cut -c 1-128
}}
first_of() {{
    local path said
    for path; do
        said=$(cat "$path" 2>/dev/null | word)
        [ -z "$said" ] || break
    done
    echo "$said"
}}
serial_of() {{
    local said
    said=$(first_of "$block/$1/serial" "$block/$1/device/serial")
    # A SCSI disk's is behind four bytes of a page of its own.
    echo "${{said:-$(tail -c +5 "$block/$1/device/vpd_pg80" 2>/dev/null | word)}}"
}}
wwid_of() {{
    first_of "$block/$1/wwid" "$block/$1/device/wwid"
}}
identity_of() {{
    local serial wwid said
    serial=$(serial_of "$1") wwid=$(wwid_of "$1")
    said="${{serial:+serial:$serial,}}${{wwid:+wwid:$wwid,}}"
    echo "${{said:-name:$1,}}bytes:$(($(cat "$block/$1/size") * 512))"
}}
# Whether the disk $1 is the one that the site calls $2.
is_called() {{
    case "$2" in
        serial:*) [ "$(serial_of "$1")" = "${{2#serial:}}" ] ;;
        wwid:*) [ "$(wwid_of "$1")" = "${{2#wwid:}}" ] ;;
        *) [ "$dev/$1" = "$2" ] ;;
    esac
}}
# The names of all whole disks that have a medium.
disks() {{
    local path name
    for path in "$block"/*; do
        name=${{path##*/}}
        case "$name" in
            loop* | ram* | zram* | sr* | fd* | nbd* | dm-* | md* | mmcblk*boot*) continue ;;
        esac
        [ "$(cat "$path/hidden" 2>/dev/null)" = 1 ] && continue
        [ "$(cat "$path/size" 2>/dev/null || echo 0)" -gt 0 ] && echo "$name"
    done
}}
called() {{
    local name
    for name in $(disks); do
        is_called "$name" "$1" && [ -e "$dev/$name" ] && echo "$name"
    done
}}
is_kept() {{
    local one
    for one in $keep; do
        is_called "$1" "$one" && return 0
    done
    return 1
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
erase=no discard=no called= keep= identity= image= image_sha256= seed= seed_sha256=
while read -r key value; do
    case "$key" in
        erase) erase=$value ;;
        discard) discard=$value ;;
        disk) called=$value ;;
        keep) keep=$value ;;
        identity) identity=$value ;;
        image) image=$value ;;
        image_sha256) image_sha256=$value ;;
        seed) seed=$value ;;
        seed_sha256) seed_sha256=$value ;;
    esac
done <"$work/spec"

doing "looking for $called"
talk &
left=60
until found=$(called "$called"); [ -n "$found" ]; do
    left=$((left - 1))
    if [ "$left" -le 0 ]; then
        there=$(for name in $(disks); do echo "$name ($(identity_of "$name"))"; done | xargs)
        fail "there is no disk $called; there are: $there"
    fi
    sleep 0.5
done
set -- $found
[ $# = 1 ] || fail "several disks are $called: $*; name it by its wwid"
disk="$dev/$found"
is=$(identity_of "$found")
is_kept "$found" && fail "the disk $called is $is, one of keep_disks; name it by its serial or wwid"
for other in $(disks); do
    [ "$other" = "$found" ] || is_kept "$other" ||
        fail "another disk is there, which is not among keep_disks: $other, $(identity_of "$other")"
done
if [ -n "$identity" ] && [ "$identity" != "$is" ]; then
    # What was erased is another disk; or what is to be erased is no more where it was.
    [ "$erase" = no ] || fail "{MOVED} $identity, and $called is $is"
    erase=yes
fi
say "disk $is"
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
