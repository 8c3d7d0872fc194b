"""Starts a unit's process for the process driver: run as a file of its own, with the standard library alone.

It forks, and its parent ends at once, so that the unit belongs to no daemon and survives each of them alike. What it
leaves behind is the truth whenever the daemon may be killed: it writes down the process's id and start time before it
becomes the unit's command, and holds the unit's lock until then.

Standard input: a JSON object with ``command``, ``environment``, ``directory``, ``output``, ``pid_file``, ``boot``,
``limits`` (resource names to numbers), ``lock`` (a descriptor that is let go when the command starts), ``ready`` (the
descriptor to announce on), ``keep_ready`` (whether the command gets that one).
Announces ``pid ID START`` and, if it fails, ``error TEXT``; without ``keep_ready`` the end of the pipe means: started.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any, NoReturn


def main() -> None:
    """Forks; the child becomes the unit."""
    spec = json.load(sys.stdin)
    if os.fork() == 0:
        become(spec)
    os._exit(0)


def become(spec: dict[str, Any]) -> NoReturn:
    """Turns this process into the unit's command, or says on the ready pipe why not."""
    ready = spec["ready"]
    try:
        os.setsid()
        os.umask(0o077)
        start = start_time()
        write_pid(spec["pid_file"], {"pid": os.getpid(), "start": start, "boot": spec["boot"]})
        os.write(ready, f"pid {os.getpid()} {start}\n".encode())
        redirect(spec["output"])
        os.chdir(spec["directory"])
        # Python ignores these, and what is ignored stays so over an exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for name, limit in spec["limits"].items():
            resource.setrlimit(getattr(resource, name), (limit, limit))
        os.set_inheritable(ready, spec["keep_ready"])
        os.set_inheritable(spec["lock"], False)
        os.execve(spec["command"][0], spec["command"], spec["environment"])
    except (OSError, ValueError) as error:
        os.write(ready, f"error {error}\n".encode("utf-8", "replace"))
    os._exit(127)


def start_time() -> int:
    """This process's start time, in ticks since boot."""
    with open("/proc/self/stat", errors="replace") as file:  # noqa: PTH123 - pathlib costs 5 ms of a start of 15
        text = file.read()
    return int(text[text.rindex(")") + 2 :].split()[19])


def write_pid(name: str, content: dict[str, Any]) -> None:
    """Writes the file whole. It need not outlast a power failure, which the process does not either."""
    beside = name + ".new"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, json.dumps(content).encode())
    os.close(descriptor)
    os.replace(beside, name)  # noqa: PTH105


def redirect(output: str) -> None:
    """Standard input from nowhere, standard output and error to the end of the file."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nowhere, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    main()
