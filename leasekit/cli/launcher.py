"""What ``leasekit run`` starts: it becomes the command, which the system tells to end (SIGTERM) when its parent dies.

    python -I -S launcher.py PARENT COMMAND...

It is run by its path, and imports nothing of leasekit. A command that can't be run ends it as a shell would: with 127
for one that there is not, else 126.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # of linux/prctl.h
NOT_RUN: Final = 126
NOT_FOUND: Final = 127


def main() -> int:
    """Become the command; the exit status where that can't be."""
    parent, *words = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before the system was asked
        return 128 + signal.SIGTERM
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and commands do not expect to be
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.stderr.write(f"leasekit: {words[0]}: can't be run: {error.strerror}\n")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
