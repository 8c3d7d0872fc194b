"""What actors do, in a digest for each golden script and simulated seed: the inside was rebuilt, and nothing changed.

    python tests/behaviour.py --seeds 0..1999 --against main    # which of them this tree does otherwise than main
    python tests/behaviour.py --seeds 0..99                     # the digests
    python tests/behaviour.py --trace 17                        # all that is done in seed 17, or in a script

A digest covers every ``Ready`` that any actor hands out, in order. It has three parts, for when one of them changes on
purpose: *rows* (what is committed), *messages* (as they are encoded) and *rest* (replies, actions, peers).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import leasekit

HERE: Final = Path(__file__).resolve().parent
SCRIPTS: Final = HERE / "actors" / "scripts"
PARTS: Final = ("rows", "messages", "rest")


class Done(NamedTuple):
    """Something that an actor wanted done: in which part of the digest it counts, and as which bytes."""

    part: str
    actor: str
    what: bytes


def listed(name: str, ready: Any) -> Iterator[Done]:
    """All of one ``Ready``, in order."""
    from leasekit.core.protocol.codec import encode_message

    for change in ready.changes:
        yield Done("rows", name, repr((change.table, change.key, change.row)).encode())
    for peer, message in ready.messages:
        yield Done("messages", name, peer.encode() + b" " + encode_message(message))
    for reply in ready.replies:
        yield Done("rest", name, repr((reply.id, _plain(reply.result), reply.error)).encode())
    for action in ready.actions:
        yield Done("rest", name, repr(tuple(map(_plain, action))).encode())
    for peer, known in ready.peers:
        key = known.key.hex() if known is not None else ""
        yield Done("rest", name, f"{peer} {key}".encode())


def _plain(value: Any) -> Any:
    """The same in an order of its own."""
    if isinstance(value, Mapping):
        return sorted((str(key), _plain(inner)) for key, inner in value.items())
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@contextmanager
def heard(take: Callable[[Done], None]) -> Iterator[None]:
    """While this lasts ``take`` is told of all that any actor hands out."""
    from leasekit.actors.base import Actor

    original = Actor.ready

    def ready(self: Actor) -> Any:
        found = original(self)
        for done in listed(self.name, found) if found is not None else ():
            take(done)
        return found

    Actor.ready = ready  # type: ignore[method-assign]
    try:
        yield
    finally:
        Actor.ready = original  # type: ignore[method-assign]


def play(name: str, take: Callable[[Done], None]) -> None:
    """Run a script, or a seed."""
    with heard(take):
        if name.isdecimal():
            home = _home_of_simulation()
            scenario = import_module(f"{home}.scenario").draw(int(name))
            import_module(f"{home}.run").simulate(scenario)
        else:
            from actor_script import run_script

            run_script((SCRIPTS / f"{name}.txt").read_text("utf-8"))


def _home_of_simulation() -> str:
    """Its package, which is inside leasekit in older revisions."""
    inside = Path(leasekit.__file__).parent / "emulation" / "simulation" / "run.py"
    return "leasekit.emulation.simulation" if inside.exists() else "leasekit_simulation.faults"


def digest(name: str) -> str:
    """The digest of a script or seed, in a line."""
    sums = {part: blake2b(digest_size=8) for part in PARTS}

    def take(done: Done) -> None:
        sums[done.part].update(f"{done.actor} {len(done.what)} ".encode() + done.what)

    play(name, take)
    return " ".join([name, *(f"{part}={sums[part].hexdigest()}" for part in PARTS)])


def digests(names: list[str], jobs: int) -> list[str]:
    """Digests of several, on so many cores."""
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(digest, names, chunksize=4))


def digests_of(revision: str, names: list[str], jobs: int) -> list[str]:
    """Digests as another revision has them, by this very file."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            path = os.pathsep.join(str(tree / folder) for folder in (".", "simulation", "tests"))
            line = [sys.executable, "-P", str(HERE / "behaviour.py"), "--jobs", str(jobs), "--names", *names]
            made = subprocess.run(
                line, env={**os.environ, "PYTHONPATH": path}, cwd=tree, capture_output=True, text=True, check=False
            )
            if made.returncode:
                raise SystemExit(f"{revision}: {made.stderr.strip()[-2000:]}")
            return made.stdout.splitlines()
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(HERE), *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Print digests, or what differs from another revision; exits with 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..49", metavar="FROM..TO", help="which seeds [0..49]")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="on how many cores [2]")
    parser.add_argument("--against", metavar="REVISION", help="compare with this revision")
    parser.add_argument("--trace", metavar="NAME", help="print all that is done in one seed or script")
    parser.add_argument("--names", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        play(options.trace, lambda done: print(done.part, done.actor, done.what))
        return 0
    first, _, last = options.seeds.partition("..")
    names = options.names or [
        *sorted(path.stem for path in SCRIPTS.glob("*.txt")), *map(str, range(int(first), int(last) + 1)),
    ]  # fmt: skip
    if options.against is None:
        print(*digests(names, options.jobs), sep="\n")
        return 0
    theirs, ours = digests_of(options.against, names, options.jobs), digests(names, options.jobs)
    differ = [(old, new) for old, new in zip(theirs, ours, strict=True) if old != new]
    for old, new in differ:
        print(f"- {old}\n+ {new}")
    print(f"{len(names) - len(differ)} of {len(names)} are the same as in {options.against}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
