"""Explores, and writes docs/states.md: ``python -m leasekit_simulation.explore --faults 2 --write docs/states.md``."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from leasekit_simulation.explore import FLOWS, Report, explore, never_reached, page


@click.command()
@click.argument("flows", nargs=-1, type=click.Choice(list(FLOWS)))
@click.option(
    "--faults", type=click.IntRange(0, 5), default=1, show_default=True, help="how many are outstanding at most"
)
@click.option(
    "--audit", type=click.IntRange(0), default=1000, show_default=True, help="compare every so manieth (0: none)"
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="how many flows at a time")
@click.option("--write", type=click.Path(dir_okay=False, path_type=Path), help="the page to write")
def main(flows: tuple[str, ...], faults: int, audit: int, jobs: int, write: Path | None) -> None:
    """Explore FLOWS (all, if none is named); the exit status is 1 if anything is wrong."""
    chosen = list(dict.fromkeys(flows)) or list(FLOWS)
    reports = _explore(chosen, faults, audit, jobs)
    fine = all(report.fine for report in reports)
    if not flows and faults >= 2:
        for level in never_reached(reports):
            fine = False
            click.echo(f"declared legal, but never reached: {' | '.join(level)}")
    if write is not None:
        write.write_text(page(reports), encoding="utf-8")
    sys.exit(0 if fine else 1)


def _explore(chosen: list[str], faults: int, audit: int, jobs: int) -> list[Report]:
    reports = []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[found]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        if jobs > 1:
            task = bar.add_task("exploring", found=f"{len(chosen)} flows")
            with ProcessPoolExecutor(jobs) as pool:
                waiting = [pool.submit(explore, name, min(faults, FLOWS[name].most), audit=audit) for name in chosen]
                for done, future in enumerate(waiting, start=1):
                    reports.append(future.result())
                    bar.console.print(reports[-1].text(), soft_wrap=True)
                    bar.update(task, found=f"{len(chosen) - done} flows to go")
            return reports
        for name in chosen:
            task = bar.add_task(name, found="")

            def tell(found: int, waiting: int, most: int, task: int = task) -> None:
                text = f"{found} joint states, {waiting} to go through, {most} faults"
                bar.update(task, found=text)  # type: ignore[arg-type]

            reports.append(explore(name, min(faults, FLOWS[name].most), tell, audit=audit))
            bar.remove_task(task)
            click.echo(reports[-1].text())
    return reports


if __name__ == "__main__":
    main()
