"""``leasekit lease request --every``, against real daemons; and which terms days and hours are in a time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, tzinfo
from zoneinfo import ZoneInfo

import pytest
from cli_daemons import Cli, site_and_broker

from leasekit.cli.options import parse_when
from leasekit.config.instants import shown
from leasekit.config.recurrence import SERIES_MAX, Recurrence

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = site_and_broker("""
[[actor.site.inventory]]
type = "vm"
units = 8
driver = "none"
[[actor.site.delegation]]
broker = "broker"
type = "vm"
units = 8
length = "7300d"
[actor.site.driver.none]
kind = "null"
""")
WEEKS = "--every mon,wed --from 9:00 --to 17:00 --until 2040-01-13 --start 2040-01-01"
DAYS = ["2040-01-02", "2040-01-04", "2040-01-09", "2040-01-11"]
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def cli(file: object, cli: Cli) -> Cli:
    """The command line, with no lease open that a test before has left."""
    for lease in cli.json("lease list"):
        cli(f"lease close {lease['id']} --wait")
    return cli


def test_all_days_are_granted(cli: Cli) -> None:
    """Each day is a lease of its own, named by its date, at the hours that were asked for; all are one group."""
    told = cli.json(f"lease request vm 5 {WEEKS} --name lab --zone America/New_York")
    assert [(day["name"], day["status"], day["site"]) for day in told["days"]] == [
        (f"lab.{day}", "granted", "site") for day in DAYS
    ]
    leases = cli.json("lease list")
    assert [lease["name"] for lease in leases] == [f"lab.{day}" for day in DAYS]
    for name, day in zip((lease["id"] for lease in leases), DAYS, strict=True):
        lease = cli.json(f"lease show {name}")
        assert [shown(at) for at in lease["approved"]["term"]] == [f"{day}T14:00:00Z", f"{day}T22:00:00Z"]
        assert lease["requested"]["properties"]["group_id"] == told["group"]
    out, _ = cli(f"lease request vm 3 {WEEKS} --filter type==vm")
    assert out.count("granted") == 4
    refused = cli.json(f"lease request vm 1 {WEEKS} --filter rack==z", 1)
    assert {day["status"] for day in refused["days"]} == {"refused"}


def test_one_day_that_can_not_be_had_refuses_all(cli: Cli) -> None:
    """None is kept, no unit stays booked; the answer says which day it was, and which could be had by themselves."""
    cli("lease request vm 4 --start 2040-01-09T10:00 --for 1h --name other --wait-for granted")
    told = cli.json(f"lease request vm 5 {WEEKS} --name lab", 1)
    assert [day["status"] for day in told["days"]] == ["possible", "possible", "refused", "possible"]
    assert "4 free at site" in told["days"][2]["reason"]
    assert [lease["name"] for lease in cli.json("lease list")] == ["other"]
    assert cli(f"lease request vm 5 {WEEKS}", 1)[1] == "leasekit: 1 of 4 days can't be had; none was kept\n"
    assert cli.json("lease request vm 8 --for 8h --start 2040-01-02T09:00 --dry-run")["status"] == "granted"


def test_days_that_come_to_more_than_a_quota(cli: Cli) -> None:
    """Each could be had, but not all: a dry run says that, and a refusal (48 hours of 8 units are the limit)."""
    line = "lease request vm 8 --every day --from 9:00 --to 17:00 --start 2040-01-01 --until 2040-01-08"
    for words, status in ((f"{line} --dry-run", 0), (line, 1)):
        assert "by itself: all together may come to more than a quota" in cli(words, status)[1]
    assert cli.json("lease list") == []


def test_each_day_that_can_be_had(cli: Cli) -> None:
    """With --each those that fit are kept; a dry run keeps none, and says the same."""
    cli("lease request vm 4 --start 2040-01-09T10:00 --for 1h --name other --wait-for granted")
    tried = cli.json(f"lease request vm 5 {WEEKS} --each --dry-run --name lab", 1)
    assert [day["status"] for day in tried["days"]] == ["possible", "possible", "refused", "possible"]
    assert [lease["name"] for lease in cli.json("lease list")] == ["other"]
    told = cli.json(f"lease request vm 5 {WEEKS} --each --name lab", 1)
    assert [day["status"] for day in told["days"]] == ["granted", "granted", "refused", "granted"]
    assert [lease["name"] for lease in cli.json("lease list")] == [
        "other",
        *(f"lab.{day}" for day in DAYS if "09" not in day),
    ]
    assert cli.json(f"lease request vm 3 {WEEKS} --each")["group"] == ""


def test_what_can_not_be_asked_for_leaves_nothing(cli: Cli) -> None:
    """A name that a lease has, or a type that nobody has, is one error; what was asked for before it is closed."""
    cli("lease request vm 1 --start 2040-02-01 --for 1h --name lab.2040-01-09 --wait-for granted")
    _, err = cli(f"lease request vm 1 {WEEKS} --name lab", 1)
    assert err.startswith("leasekit: name: slice 'default' has a lease 'lab.2040-01-09' already")
    assert [lease["name"] for lease in cli.json("lease list")] == ["lab.2040-01-09"]
    told = cli.json(f"lease request tape 1 {WEEKS}", 1)
    assert {day["status"] for day in told["days"]} == {"refused"}
    assert "type: found 'tape', broker has vm" in told["days"][0]["reason"]
    assert "has vm" in cli(f"lease request tape 1 {WEEKS} --dry-run", 1)[0]


def test_a_request_is_followed_until_it_is_granted(cli: Cli) -> None:
    """``--wait-for granted`` ends with the ticket, before the lease or its extension begins, or with the refusal."""
    lease = cli.json("lease request vm 2 --for 1h --start +2h --name web --wait-for granted")
    assert (lease["state"], lease["pending"]) == ("ticketed", "-")
    assert "no site here has more than 8" in cli("lease request vm 9 --for 1h --start +2h --wait-for granted", 1)[1]
    assert cli.json("lease request vm 2 --for 1h --name now --wait-for active")["state"] == "active"
    extended = cli.json("lease extend now --for 30m --wait-for granted")
    assert extended["renewal"]["term"][1] == extended["end"] + 30 * 60_000
    cli("lease request vm 6 --for 1h --start +100m --name more --wait-for granted")
    assert "leasekit: lease" in cli("lease extend now --for 3h --units 8 --wait-for granted", 1)[1]
    changed = cli.json("lease modify web --units 1 --start +3h --wait-for granted")
    assert (changed["state"], changed["pending"], changed["approved"]["units"]) == ("ticketed", "-", 1)
    assert changed["approved"]["term"][0] > lease["approved"]["term"][0]
    assert "8 at most" in cli("lease modify web --units 9 --wait-for granted", 1)[1]
    assert cli.json("lease modify now --units 1 --wait-for granted")["requested"]["units"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--every mon --from 9:00 --to 8:00 --until +3w", "--to: found 08:00, which is not after --from, 09:00"),
        ("--every mon --from 9:00 --to 9:00 --until +3w", "which is not after --from"),
        (
            "--every mon --from 9 --to 17:00 --until +3w",
            "found '9', expected a time of day from 0:00 to 23:59; a single lease has --start and --for",
        ),
        ("--every mun --from 9:00 --to 17:00 --until +3w", "found mun, expected days such as mon-fri"),
        ("--every , --from 9:00 --to 17:00 --until +3w", "found ,, expected days such as mon-fri"),
        ("--every mon --from 9:00 --to 17:00", "--every, --from, --to and --until go together"),
        ("--each --for 1h", "--every, --from, --to and --until go together"),
        (f"{WEEKS} --for 1h", "--for goes without --every"),
        (f"{WEEKS} --wait", "--wait goes without --every"),
        (f"{WEEKS} --group g", "--group goes without --every"),
        (f"{WEEKS} --zone Mars/Base", "found Mars/Base, expected a name of the time zone database"),
        (f"{WEEKS} --zone ../../etc/passwd", "expected a name of the time zone database"),
        (f"{WEEKS} --zone Europe", "expected a name of the time zone database"),
        ("--every day --from 9:00 --to 17:00 --until 2030-01-01 --start 2030-01-02", "before the first day, 2030"),
        ("--every fri --from 9:00 --to 17:00 --until 2040-01-05 --start 2040-01-01", "no such day is left"),
        ("--every day --from 0:00 --to 1:00 --until 9999-12-31", f"expected at most {SERIES_MAX} leases"),
        ("--every day --from 0:00 --to 1:00 --until 99999999999999999", "expected now, +2h, tomorrow"),
    ],
)  # fmt: skip
def test_bad_input(cli: Cli, options: str, message: str) -> None:
    """What makes no sense is one message, and nothing is asked for."""
    _, err = cli(f"lease request vm 1 {options}", 2)
    assert message in err
    assert err.count("\n") == 1
    assert cli.json("lease list") == []


def terms(days: str, begin: str, end: str, first: str, last: str, zone: tzinfo) -> list[str]:
    """The terms of a series, as days and instants."""
    start, until = (parse_when(text, 0, zone) for text in (first, last))
    numbers = frozenset(map(int, days.split()))
    series = Recurrence(numbers, time.fromisoformat(begin), time.fromisoformat(end), until, False, zone)
    return [f"{day} {shown(a)[11:16]} {shown(b)[11:16]}" for day, (a, b) in series.terms(start)]


def test_hours_are_those_of_the_zone() -> None:
    """Nine o'clock stays nine o'clock when the clocks change; what has begun at the start is left out."""
    found = terms("0 1 2 3 4 5 6", "09:00", "17:00", "2027-03-27T09:01", "2027-03-29", BERLIN)
    assert found == ["2027-03-28 07:00 15:00", "2027-03-29 07:00 15:00"]
    found = terms("0 1 2 3 4 5 6", "09:00", "17:00", "2027-10-30", "2027-10-31", BERLIN)
    assert found == ["2027-10-30 07:00 15:00", "2027-10-31 08:00 16:00"]


def test_hours_that_do_not_exist_or_come_twice() -> None:
    """A time that is skipped counts from before the change (2:30 is 3:30 then), one that comes twice is its first."""
    assert terms("6", "02:30", "05:00", "2027-03-28", "2027-03-28", BERLIN) == ["2027-03-28 01:30 03:00"]
    assert terms("6", "02:30", "03:15", "2027-03-28", "2027-03-28", BERLIN) == ["2027-03-28 01:30 01:30"]
    assert terms("6", "02:30", "03:00", "2027-10-31", "2027-10-31", BERLIN) == ["2027-10-31 00:30 02:00"]


def test_days_whose_hours_are_skipped_are_left_out(cli: Cli) -> None:
    """A day on which there are no such hours is named, and the others are asked for."""
    line = "--every sun --from 2:30 --to 3:15 --start 2040-03-19 --until 2040-04-02 --zone Europe/Berlin"
    told = cli.json(f"lease request vm 1 {line}")
    assert told["skipped"] == ["2040-03-25"]
    assert [shown(day["term"][0]) for day in told["days"]] == ["2040-04-01T00:30:00Z"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("today", "2027-03-01"),
        ("tomorrow", "2027-03-02"),
        ("Tomorrow 9:00", "2027-03-02T09:00"),
        ("today 23:59", "2027-03-01T23:59"),
        ("mon", "2027-03-08"),
        ("monday 9:00", "2027-03-08T09:00"),
        ("monday 13:00", "2027-03-01T13:00"),
        ("sunday", "2027-03-07"),
        ("9:00", "2027-03-02T09:00"),
        ("12:00", "2027-03-02T12:00"),
        ("12:01", "2027-03-01T12:01"),
    ],
)
def test_days_by_name(text: str, found: str) -> None:
    """Days and times of day are the next that are to come, in UTC or in the zone that is named."""
    monday_noon = datetime(2027, 3, 1, 12, tzinfo=UTC)
    expected = datetime.fromisoformat(found)
    for zone in (UTC, BERLIN, ZoneInfo("Pacific/Kiritimati")):
        now = monday_noon.replace(tzinfo=zone)
        assert parse_when(text, int(now.timestamp()) * 1000, zone) == expected.replace(tzinfo=zone).timestamp() * 1000


@pytest.mark.parametrize(
    "text", ["someday", "today 24:00", "today today", "monday9:00", "9:0", "mon 9:00 x", "9:00 mon"]
)
def test_no_day(text: str) -> None:
    """What is no day is refused, with what is allowed."""
    with pytest.raises(ValueError, match="expected now, \\+2h, tomorrow, monday 9:00"):
        parse_when(text, 0)


def test_a_series_ends_with_the_calendar() -> None:
    """The last day that there is bounds a series without an error."""
    series = Recurrence(frozenset({0}), time(1), time(2), 2**53, False, ZoneInfo("Pacific/Kiritimati"))
    days = [day for day, _ in series.terms(253_400_000_000_000)]
    assert days == [date(9999, 12, 6), date(9999, 12, 13), date(9999, 12, 20), date(9999, 12, 27)]
