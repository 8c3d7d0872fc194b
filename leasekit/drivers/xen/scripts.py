"""The scripts that run in control domains, by `sh -c`. They are constant: all that varies is an argument, and quoted.

``$1`` is the folder that the driver has there, ``$2`` what a unit is called. What changes whether a unit has a domain
holds a lock on the unit's folder: a script that outlived the daemon which sent it can't start what another has
removed, nor end what another has made since. The lock goes with the folder. Units don't wait for each other's, only for
`xl` itself, which starts or restores one domain at a time. The lock is not handed on to the process that `xl create`
leaves behind, which lives as long as the domain. None of them ends half way because the connection does: `xl` that is
killed while it saves or moves a domain leaves it stopped.
"""

from __future__ import annotations

import shlex
from typing import Final

_TO_ITS_END: Final = 'trap "" HUP PIPE; '
_STILL: Final = '[ . -ef "$1/units/$2" ] || { echo "the folder of $2 was removed meanwhile" >&2; exit 1; }; '


def _locked(script: str) -> str:
    inner = shlex.quote(f"umask 077; {_TO_ITS_END}{_STILL}{script}")
    return f'set -eu; cd "$1/units/$2"; exec flock -o . sh -euc {inner} sh "$@"'


UNIT: Final = 'set -eu; umask 077; unit="$1/units/$2"; '

READ: Final = UNIT + (
    'xl=$3; if [ -e "$unit/record.json" ]; then tr -d "\\n" <"$unit/record.json"; fi; echo; '
    'if [ -e "$unit/saved" ]; then echo saved; else echo; fi; exec "$xl" list'
)
"""Unit, xl. A unit's record in a line, ``saved`` in another, and the table of all domains."""

LIST: Final = 'set -eu; mkdir -p "$1/units" "$1/images"; ls -1 "$1/units"; echo; exec "$2" list -l'
"""xl. The names of all units' folders, an empty line, and all domains as JSON."""

MAKE: Final = 'set -eu; umask 077; mkdir -p "$1/images" "$1/units"; mkdir -p "$1/units/$2"'
"""Unit. The unit's folder."""

_WHOLE: Final = 'if [ "$found" != "$4" ]; then echo "$found of $4 bytes came" >&2; exit 1; fi; mv "$new" "$3"'
"""The input of a connection that broke, or of a daemon that was killed, ends early and looks as any other."""

WRITE: Final = UNIT + f'cd "$unit"; new="$3.new"; cat >"$new"; found=$(stat -c %s "$new"); {_WHOLE}'
"""Unit, file, bytes. What is on standard input becomes a file of the unit's, whole or not at all."""

WRITE_INITRD: Final = UNIT + (
    'cd "$unit"; new="$3.new"; base="$1/images/$5"; size=$(stat -c %s "$base"); fill=$(((4 - size % 4) % 4)); '
    '{ cat "$base"; head -c "$fill" /dev/zero; cat; } >"$new"; '
    f'found=$(($(stat -c %s "$new") - size - fill)); {_WHOLE}'
)
"""Unit, file, bytes, image. The unit's initrd: the image's, and behind it what is on standard input."""

HAS_IMAGE: Final = 'set -eu; if [ -e "$1/images/$2" ]; then echo yes; fi'
"""Image: its checksum."""

PUT_IMAGE: Final = (
    'set -eu; umask 077; mkdir -p "$1/images"; cd "$1/images"; part=".$2.$$"; trap \'rm -f "$part"\' EXIT; '
    'cat >"$part"; found=$(sha256sum "$part" | cut -c 1-64); '
    'if [ "$found" = "$2" ]; then mv "$part" "$2"; else echo "$found"; fi'
)
"""Image. What is on standard input becomes an image if it has that checksum; tells which it has if not."""

COPY_DISK: Final = UNIT + (
    'cd "$unit"; base="$1/images/$3"; '
    'if [ "$4" = raw ]; then cp --reflink=auto --sparse=always "$base" disk; '
    'else qemu-img convert -f "$4" -O raw "$base" disk; fi; '
    'if [ "$(stat -c %s disk)" -lt "$5" ]; then truncate -s "$5" disk; fi'
)
"""Unit, image, its format, the least size in bytes."""

OVERLAY_DISK: Final = UNIT + (
    'cd "$unit"; base="$1/images/$3"; qemu-img create -q -f qcow2 -F "$4" -b "$base" disk; '
    "size=$(qemu-img info --output=json disk | sed -n 's/^ *\"virtual-size\": \\([0-9]*\\),*$/\\1/p' | tail -n 1); "
    'if [ "$size" -lt "$5" ]; then qemu-img resize -q -f qcow2 disk "$5"; fi'
)
"""Unit, image, its format, the least size in bytes."""

CREATE: Final = _locked('test -e domain.cfg; exec "$3" create -q "$1/units/$2/domain.cfg"')
"""Unit, xl. Starts the domain, unless the unit was removed meanwhile."""

SAVE: Final = UNIT + _TO_ITS_END + '"$4" save "$3" "$unit/saved.new" >&2; mv "$unit/saved.new" "$unit/saved"'
"""Unit, domain, xl. The domain's memory to a file; the domain ends."""

RESTORE: Final = _locked(
    "mv saved restoring; "
    'if "$3" restore restoring >&2; then shred -n 0 -z -u restoring; else mv restoring saved; exit 1; fi'
)
"""Unit, xl. The domain goes on from the file, which must not be used again: its disk goes on too."""

MIGRATE: Final = UNIT + _TO_ITS_END + 'exec flock "$unit/moving" "$4" migrate "$3" "$5" >&2'
"""Unit, domain, xl, the login at the other host. The domain goes on there, and ends here. One move of a unit at a time:
what comes after one that nobody waited for sees how that one ended.
"""

_END: Final = (
    'names() { table=$("$1" list); printf "%s\\n" "$table" | cut -d " " -f 1 | tr "\\n" " "; }; there=$(names "$3"); '
    'for name in "$4" "$4--incoming" "$4--migratedaway"; do case " $there " in *" $name "*) '
    '"$3" destroy "$name" >&2 || { left=$(names "$3"); case " $left " in *" $name "*) exit 1;; esac; };; '
    'esac; done; rm -f "$1/units/$2/domain.cfg"'
)

# Where there is no folder there is nothing that could start a domain.
REMOVE: Final = f'set -eu; if [ ! -d "$1/units/$2" ]; then {_TO_ITS_END}{_END}; exit; fi; {_locked(_END)}'
"""Unit, xl, domain. Ends the domain if it is there, for good."""

_FORGET_LOGS: Final = 'rm -f "$1/guest-$2.log" "$1/guest-$2--incoming.log" "${1%/*}/xl-$2.log" "${1%/*}/xl-$2.log".*'

FORGET_LOGS: Final = f"set -eu; {_FORGET_LOGS}"
"""Folder of console logs, domain. Removes what its guest wrote here and what `xl` logged of the domain, which is beside
that folder.
"""

WIPE: Final = UNIT + (
    'if [ -d "$unit" ]; then cd "$unit"; '
    "for file in seed seed.new initrd initrd.new saved saved.new restoring; do "
    'if [ -f "$file" ]; then shred -n 0 -z -u "$file"; fi; done; '
    'if [ "$3" = yes ] && [ -f disk ]; then shred -n 0 -z -u disk; fi; '
    f'if [ . -ef "$unit" ]; then cd /; rm -rf "$unit"; fi; fi; shift 3; {_FORGET_LOGS}'
)
"""Unit, whether its disk is overwritten, the folder of console logs, domain. Removes all files of the unit's, though
not of a folder that was made since, and its logs.
"""

FORGET: Final = UNIT + (
    'for file in saved saved.new restoring; do if [ -f "$unit/$file" ]; then shred -n 0 -z -u "$unit/$file"; fi; done'
)
"""Unit. Removes what was saved of it."""

TAIL: Final = (
    'set -eu; cd "$1" || exit 0; for name in "guest-$2.log" "guest-$2--incoming.log"; do '
    'if [ -e "$name" ]; then cat "$name"; fi; done | tail -c "$3"'
)
"""Folder of console logs, domain, bytes. The end of what the guest wrote; nothing where there is no log."""

XL: Final = 'exec "$@"'
"""xl and its arguments."""

MARK: Final = "====="
"""The line between the parts of what :data:`LOOK` says."""

LOOK: Final = (
    f'set -u; part() {{ echo; echo "{MARK}"; }}; "$1" info; part; df -Pk "$2" 2>/dev/null | tail -n 1; part; '
    "for program in flock sha256sum shred truncate qemu-img pygrub; "
    'do command -v "$program" >/dev/null || echo "$program"; done; part; '
    '[ -d "/sys/class/net/$3/bridge" ] && echo bridge; part; '
    'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " <"$file" 2>/dev/null; echo; done '
    '| grep -a "^[^ ]*xenconsoled"; :'
)
"""xl, folder, bridge. What there is: `xl info`, room, missing programs, the bridge, how xenconsoled was started."""

LOOK_OVER: Final = 'ssh -o BatchMode=yes -o ConnectTimeout=10 "$1" xl info </dev/null >/dev/null || exit 1'
"""The login at another host. As `xl migrate` does it; 255, which ssh ends with, would be that of the driver's own."""
