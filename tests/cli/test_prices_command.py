"""``leasekit broker prices``: what a market has charged, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_daemons import Cli, site_and_broker

from leasekit.cli import pictures
from leasekit.config.instants import parse_instant
from leasekit.core.time import HOUR, SECOND, Term

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = site_and_broker("""
inventory = [{ type = "vm", units = 2 }]
delegation = [{ broker = "broker", type = "vm" }]

[actor.broker.mapper]
name = "spot"
reserve = 2
period = "1m"
""")


def test_a_picture_is_of_the_prices_that_there_are(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first on, where no begin is said, and not of a day in which there was no market."""
    cli("lease request vm 1 --for 10m --preemptible --bid 5 --name low --wait")
    (price,) = cli.json("broker prices")
    assert (price["type"], price["price"]) == ("vm", 2)
    drawn: list[Term] = []

    def draw(prices: object, period: Term, file: Path) -> None:
        drawn.append(period)
        really(prices, period, file)

    really = pictures.draw_prices
    monkeypatch.setattr(pictures, "draw_prices", draw)
    for line in ("broker prices", "broker prices --since -1d"):
        cli(f"{line} --out {tmp_path / 'prices.svg'}")
    at = parse_instant(price["at"])
    assert at - SECOND <= drawn[0].start <= at and drawn[1].start < at - HOUR
    assert (tmp_path / "prices.svg").stat().st_size > 1_000
