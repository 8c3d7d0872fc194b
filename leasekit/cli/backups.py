"""``leasekit backup`` and ``leasekit restore``: copies of actors' stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasekit.cli.output import example, json_option, listing, note, report
from leasekit.cli.places import DeployPlace, file_and_actors
from leasekit.cli.times import now
from leasekit.core.errors import LeasekitError

if TYPE_CHECKING:
    from leasekit.config.deployment import ActorSpec

COPIES = listing("actor", "store", "copy", "bytes", empty="no actor keeps a store", right=("bytes",))
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(
    epilog=example(
        "leasekit backup --to /var/backups/leasekit", "leasekit backup deploy/quickstart/all.toml site --to copies"
    )
)
@file_and_actors
@click.option("--to", "folder", type=FOLDER, metavar="DIR", required=True, help="Where the copies go, as ACTOR.db.")
@json_option
def backup(place: DeployPlace, actors: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Copy the stores of a deploy file's actors (or of those ACTORs), while their daemons run or not.

    A copy is as of one commit, and takes the place of an older one of that name only when it is whole. Keys are not
    copied: they do not change, so keep them apart.
    """
    from leasekit.stores.sqlite import copy_store

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = []
    for name, store in _stores(place, actors):
        to = folder / f"{name}.db"
        copy_store(store, to, now())
        copies.append({"actor": name, "store": str(store), "copy": str(to), "bytes": to.stat().st_size})
    report(copies, COPIES, as_json=as_json)


@click.command(epilog=example("leasekit restore site --from /var/backups/leasekit", "leasekit restore guest --empty"))
@file_and_actors
@click.option("--from", "folder", type=FOLDER, metavar="DIR", help="Where `leasekit backup` put the copies.")
@click.option("--empty", is_flag=True, help="There is no copy: begin with an empty store.")
@json_option
def restore(place: DeployPlace, actors: tuple[str, ...], folder: Path | None, empty: bool, as_json: bool) -> None:
    """Put copies in the place of the stores of a deploy file's actors (or of those ACTORs), which must not run.

    What was there is kept beside it. An actor that goes on from a copy gives no number again that it may have given
    since: docs/operations.md says what its peers see of that.
    """
    from leasekit.stores.sqlite import put_back

    if (folder is None) != empty:
        raise click.UsageError("say --from DIR, or --empty")
    done: list[dict[str, Any]] = []
    for name, store in _stores(place, actors):
        aside = put_back(None if folder is None else folder / f"{name}.db", store, now())
        done.append({"actor": name, "store": str(store), "aside": [str(path) for path in aside]})
    report(done, _tell, as_json=as_json)


def _tell(done: Sequence[dict[str, Any]]) -> None:
    for one in done:
        kept = f"; what was there is {one['aside'][0]}" if one["aside"] else ""
        note(f"{one['actor']}: {one['store']} is put back{kept}")


def _stores(place: DeployPlace, actors: Sequence[str]) -> list[tuple[str, Path]]:
    """The stores of these actors (none: all that keep one). Raises ``LeasekitError`` for one that keeps none."""
    deployment = place.deployment_with(actors)
    specs: list[ActorSpec] = [deployment.actors[name] for name in actors or deployment.actors]
    for spec in specs:
        if spec.store is None and actors:
            raise LeasekitError(f"{deployment.file}: {spec.name} keeps no store")
    return [(spec.name, spec.store) for spec in specs if spec.store is not None]
