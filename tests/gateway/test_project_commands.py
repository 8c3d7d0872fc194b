"""What a gateway keeps of projects, by command: at its control socket, or through it as whom a token is of."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest

from leasekit.cli import main
from leasekit.config.load import load
from leasekit.core.frames import MEDIA_TYPE, pack
from leasekit.runtime.client import ControlClient, RequestError

HOSTS = """
[[actor.site.inventory]]
type = "node"
units = 1
capacity = { cpu = 2, memory = "8GiB" }
[[actor.site.delegation]]
broker = "broker"
type = "node"
"""


class CommandLine:
    """Commands at a gateway, as somebody, or as the operator who has its control socket."""

    def __init__(self, world: GatewayUnderTest, url: str, capfd: pytest.CaptureFixture[str]) -> None:
        self.world, self.url, self._capfd = world, url, capfd

    def __call__(self, line: str, *words: str, token: str = "", status: int = 0) -> str:
        """What a command prints: on standard error, if it fails."""
        where = ["--url", self.url] if token else ["--file", str(self.world.file)]
        self._capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LEASEKIT_TOKEN", token)
            found = main.run([*line.split(), *words, *where])
        out, err = self._capfd.readouterr()
        assert found == status, err
        return err if status else out

    def json(self, line: str, token: str = "") -> Any:
        """The document that it prints."""
        return json.loads(self(f"{line} --json", token=token))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayUnderTest, str]]:
    """A gateway with two projects, and its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    file = tmp_path_factory.mktemp("commands") / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY.replace("unix:web.http", url) + HOSTS, "alpha", "beta"))
    with running(file):
        yield GatewayUnderTest(file, load(file).state), url


@pytest.fixture
def run(address: tuple[GatewayUnderTest, str], capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line."""
    return CommandLine(*address, capfd)


@pytest.fixture(scope="module")
def user(address: tuple[GatewayUnderTest, str]) -> str:
    """The token of a user of the project alpha."""
    return address[0].token("ursula", alpha="user")


@pytest.fixture(scope="module")
def manager(address: tuple[GatewayUnderTest, str]) -> str:
    """The token of a manager of the project alpha."""
    return address[0].token("manfred", alpha="manager")


def test_one_sees_the_projects_that_are_ones_own(run: CommandLine, user: str) -> None:
    """The operator sees all."""
    assert run("project list").split() == ["alpha", "beta"]
    assert run("project list", token=user) == "alpha\n"


def test_who_shows_no_good_token_is_told_how_to_have_one(run: CommandLine) -> None:
    """By the variable, or by logging in."""
    told = run("lease list", token="lk_none", status=1)
    assert told.endswith(f"or its time is over (LEASEKIT_TOKEN, or leasekit login --url {run.url})\n")


def test_operators_set_policies(run: CommandLine, user: str) -> None:
    """With every field; a user can't, and sees that of their own project."""
    line = (
        "policy set alpha --longest 2d --ahead 30d --lead 1m --most-units 3 --once --approve-units 2 --approver ada"
        " --approver bob --approve-length 8h --approve-within 1d --ask-within 2s --fails open"
    )
    assert "longest=2d" in run(line)
    (seen,) = run.json("policy list", user)
    said = {
        "longest": "2d", "ahead": "30d", "lead": "1m", "most_units": 3, "recurring": False, "approve_units": 2,
        "approve_length": "8h", "approvers": ["ada", "bob"], "approve_within": "1d", "ask_within": "2s",
        "fails": "open",
    }  # fmt: skip
    assert (seen["project"], seen["policy"]) == ("alpha", said)
    assert "approvers=ada,bob" in run("policy list", token=user)
    assert "only an operator" in run("policy set alpha", token=user, status=1)
    assert "project: found 'gamma'" in run("policy set gamma", status=1)
    assert "ask: found 'ftp://x'" in run("policy set alpha --ask ftp://x", status=1)
    assert run.json("policy set alpha")["policy"] == {**run.json("policy list")[1]["policy"]}


def test_what_is_to_be_approved(run: CommandLine, user: str, manager: str, tmp_path: Path) -> None:
    """Asked for by a user, from a file; seen, approved, refused and withdrawn."""
    run("policy set alpha --approve-units 1")
    wish = tmp_path / "wish.json"
    wish.write_text(json.dumps({"request": {"type": "vm", "units": 2, "length": "1h", "name": "big"}, "why": "a demo"}))
    ids = [run.json(f"approval ask {wish}", user)["id"] for _ in range(3)]
    assert "a demo" in run("approval list --only pending --project alpha", token=manager)
    assert "a demo" in run(f"approval show {ids[0]}", token=user)
    assert "is no manager" in run(f"approval approve {ids[0]}", token=user, status=1)
    approved = run(f"approval approve {ids[0]}", "--reason", "fine with me", token=manager)
    assert approved.startswith(f"{ids[0]}: approved ")
    lease = run.json("lease list --actor alpha")[0]
    assert (lease["name"], lease["id"]) == ("big", approved.split()[-1])
    assert run(f"approval refuse {ids[1]}", token=manager) == f"{ids[1]}: refused\n"
    assert run(f"approval withdraw {ids[2]}", token=user) == f"{ids[2]}: withdrawn\n"
    assert [one["state"] for one in run.json("approval list")] == ["approved", "refused", "withdrawn"]
    assert "is refused already" in run(f"approval approve {ids[1]}", token=manager, status=1)
    id_ = run.json("lease request vm 3 --for 2h --filter type==vm --start 2031-01-05 --ask-approval demo", user)["id"]
    asked = run.json(f"approval show {id_}", user)["asked"]
    assert (asked["why"], asked["request"]["length"], asked["request"]["filter"]) == ("demo", "2h", "type==vm")
    assert asked["request"]["start"] == "2031-01-05T00:00:00Z"
    both = "lease request vm 3 --for 2h --wait --ask-approval x"
    assert "--ask-approval goes without" in run(both, token=user, status=2)
    wish.write_text("{")
    assert f"{wish}: expected JSON" in run(f"approval ask {wish}", token=user, status=1)
    wish.write_text("{}")
    assert "request: expected either" in run(f"approval ask {wish}", token=user, status=1)
    run("policy set alpha")


def test_what_recurs_is_approved_as_a_whole(run: CommandLine, user: str, manager: str) -> None:
    """One decision, which says of each day what became of it; so does who asks later."""
    run("policy set alpha --approve-units 1")
    recur = (
        "lease request vm 2 --every mon,wed --from 9:00 --to 10:00 --start 2031-01-05 --until 2031-01-08 --actor alpha"
    )
    first = run.json(f"{recur} --dry-run", user)["approval"]
    assert run.json(f"{recur} --dry-run", manager).keys() == {"group", "days", "skipped"}
    one = "lease request vm 2 --for 2h --start 2031-01-05 --actor alpha --dry-run"
    assert run(one, token=user).splitlines()[1:] == [f"to be approved first: {first}"]
    assert "ask for it for all days at once with POST /approvals" in run(recur, token=user, status=1)
    id_ = run.json(f"{recur} --name lab --ask-approval lectures", user)["id"]
    out = run(f"approval approve {id_}", token=manager)
    assert out.startswith(f"{id_}: approved\n")
    shown = run(f"approval show {id_}", token=user)
    assert ["series.request.type", "vm"] in [line.split() for line in shown.splitlines()]
    for day in ("lab.2031-01-06", "lab.2031-01-08"):
        assert any(day in line and "granted" in line for line in out.splitlines())
        assert any(day in line and "granted" in line for line in shown.splitlines())
    run("policy set alpha")


def test_days_that_the_policy_does_not_allow(run: CommandLine, user: str) -> None:
    """Of all or none nothing is left; of each the others are there."""
    run("policy set alpha --ahead 20d")
    recur = "lease request vm 1 --every mon --from 9:00 --to 10:00 --until +35d --name far --actor alpha"
    assert "20d from now at the latest" in run(recur, token=user, status=1)
    before = run.json("lease list --actor alpha")
    assert not [one for one in before if one["name"].startswith("far.")]
    told = run(f"{recur} --each", token=user, status=1)
    granted = [one["id"] for one in run.json("lease list --actor alpha") if one["name"].startswith("far.")]
    refused, days = map(int, re.findall(r"(\d) of (\d) days can't be had", told)[0])
    assert (refused > 0, len(granted)) == (True, days - refused)
    assert granted
    for lease in granted:
        run(f"lease close {lease} --actor alpha")
    run("policy set alpha")


def test_calendars_are_made_and_revoked(run: CommandLine, user: str) -> None:
    """The address is printed once; there is nothing at it once it is revoked."""
    where = run("feed add --type vm --mine", token=user).strip()
    assert httpx.get(where).text.startswith("BEGIN:VCALENDAR")
    (seen,) = run.json("feed list", user)
    assert (seen["type"], seen["mine"], seen["caller"]) == ("vm", True, "ursula")
    assert "ursula" in run("feed list --project alpha")
    assert run(f"feed revoke {seen['id']}", token=user) == f"{seen['id']}: revoked\n"
    assert httpx.get(where).status_code == 404
    assert run.json("feed list", user) == []
    assert "project: found none, expected one of alpha, beta" in run("feed list", status=1)


def test_tokens_and_users_through_a_gateway(run: CommandLine, user: str, tmp_path: Path) -> None:
    """As far as one's own rights go."""
    secret = tmp_path / "password"
    secret.write_text("correct horse battery\n")
    secret.chmod(0o600)
    olga = run.world.token("olga", "operator")
    add = f"user add bob --project alpha:viewer --password-file {secret}"
    assert "is no operator" in run(add, token=user, status=1)
    assert run(add, token=olga) == "bob: added\n"
    assert "bob" in run("user list", token=olga)
    assert run("user remove bob", token=olga) == "bob: removed\n"
    made = run("token create ci --project alpha:viewer", token=user).strip()
    assert run("project list", token=made) == "alpha\n"
    assert "can't allow more" in run("token create ci --project alpha:manager", token=user, status=1)
    ci = next(one for one in run.json("token list", user) if one["name"] == "ci")
    assert run(f"token revoke {ci['id']}", token=user) == f"{ci['id']}: revoked\n"
    run("project list", token=made, status=1)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"method": "GET", "path": "/nothing"}, "path: found GET '/nothing'"),
        ({"method": "PUT", "path": "/policies/{project}"}, "there is none with such words"),
        ({"method": "GET", "path": "/events"}, "which is a stream"),
        ({"method": "GET", "path": "/policies", "query": {"x": "y"}}, "query: found 'x'"),
        ({"method": "POST", "path": "/users", "body": {"name": 5}}, "name: found 5"),
        ({"path": "/policies"}, "arguments: "),
        ({"method": "GET", "path": "/policies", "more": 1}, "arguments: "),
    ],
)
def test_what_is_no_request_of_the_api(run: CommandLine, asked: dict[str, Any], told: str) -> None:
    """One line says what is wrong."""
    with ControlClient(run.world.folder / "web.control.sock") as control, pytest.raises(RequestError) as error:
        control.command("api", **asked)
    assert told in str(error.value)


def test_an_outage_is_announced(run: CommandLine) -> None:
    """By an operator; a user sees it."""
    term = ["--start", "2031-01-01T08:00Z", "--end", "2031-01-01 12:00", "--zone", "Europe/Berlin"]
    out = run("announcement add", "no power", *term)
    id_, _, rest = out.partition(":")
    assert rest == " from 2031-01-01T08:00:00Z until 2031-01-01T11:00:00Z\n"
    ursula = run.world.token("ursula", alpha="user")
    (seen,) = run.json("announcement list", ursula)
    assert (seen["id"], seen["text"]) == (id_, "no power")
    assert "is no operator" in run("announcement remove", id_, token=ursula, status=1)
    assert run("announcement remove", id_) == f"{id_}: removed\n"


def test_what_is_taken_is_waited_for(run: CommandLine) -> None:
    """As the caller of a token, in a project."""
    ursula = run.world.token("ursula", alpha="user")
    id_ = run("wait add vm 7 --for 1h --start +1h --filter type==vm", token=ursula).partition(":")[0]
    (seen,) = run.json("wait list", ursula)
    assert (seen["id"], seen["state"], seen["asked"]["filter"]) == (id_, "waiting", "type==vm")
    assert id_ in run("wait list --project alpha")
    assert run(f"wait remove {id_}", token=ursula) == f"{id_}: removed\n"
    assert run.json("wait list", ursula) == []
    free = run.json("wait add vm 1 --for 1h --end 2031-01-01", ursula)
    assert (free["state"], free["slot"]["site"]) == ("free", "site")
    assert "site" in run("wait list", token=ursula)
    run(f"wait remove {free['id']}", token=ursula)


def test_what_machines_need_is_waited_for(run: CommandLine) -> None:
    """As a request says it."""
    ursula = run.world.token("ursula", alpha="user")
    refused = run("wait add node 1 --for 1h --needs cpu=many", token=ursula, status=2)
    assert "cpu: found 'many', expected cores, such as 0.5 (as in cpu=2,memory=4GiB)" in refused
    for machines, state in ((2, "free"), (3, "waiting")):
        made = run.json(f"wait add node {machines} --for 1h --needs cpu=0.5,memory=4GiB", ursula)
        assert (made["asked"]["needs"], made["state"]) == ({"cpu": "0.5", "memory": "4GiB"}, state)
        run(f"wait remove {made['id']}", token=ursula)


def test_a_template_is_saved_and_asked_for(run: CommandLine) -> None:
    """What the command line says takes the place of what it has; its maker removes it."""
    ursula, other = run.world.token("ursula", alpha="user"), run.world.token("vera", alpha="user")
    words = (
        "--for 90m --filter type==vm --property a=b --config image=x --timeout 20s --elastic 1 --bid 0 --preemptible"
    )
    id_ = run(f"template save lab vm 2 {words} --shared", token=ursula).partition(":")[0]
    kept = run.json("template show lab", other)
    request = {
        "type": "vm", "units": 2, "length": "1h30m", "filter": "type==vm", "properties": {"a": "b"}, "elastic": 1,
        "configuration": {"image": "x"}, "timeout": "20s", "bid": 0, "preemptible": True,
    }  # fmt: skip
    assert (kept["id"], kept["request"], kept["days"], kept["shared"]) == (id_, request, None, True)
    assert "lab" in run("template list", token=other)
    lease = run.json("lease request --template lab --name own --start +1d --for 2h --wait-for granted", other)
    assert (lease["name"], lease["requested"]["units"]) == ("own", 2)
    assert lease["approved"]["term"][1] - lease["approved"]["term"][0] == 2 * 3_600_000
    assert (
        lease["requested"]["properties"] | {"a": "b", "min_units": "1", "bid": "0"} == lease["requested"]["properties"]
    )
    more = run.json("lease request vm 3 --template lab --start +2d --dry-run", other)
    assert (more["status"], more["units"]) == ("granted", 3)
    run("lease close own", token=other)
    assert "template lab is ursula's" in run("template remove lab", token=other, status=1)
    assert run("template remove lab", token=ursula) == "lab: removed\n"
    gone = run("lease request --template lab", token=ursula, status=1)
    assert "template: found 'lab'" in gone


def test_a_template_of_what_recurs(run: CommandLine) -> None:
    """It has the days and hours on the clocks of a zone, and wants the last day; an operator's is used by the file."""
    hours = "--every mon,wed --from 9:00 --to 17:00"
    run(f"template save course vm 2 {hours} --zone America/New_York --project alpha --shared")
    days = {"every": "mon,wed", "begin": "09:00", "finish": "17:00", "zone": "America/New_York"}
    assert run.json("template show course --project alpha")["days"] == days
    use = "lease request --template course --actor alpha --start 2031-01-05"
    assert "--until: found none, the template recurs" in run(use, status=2)
    told = run.json(f"{use} --until 2031-01-08 --dry-run")
    assert [day["term"][0] for day in told["days"]] == [1_925_474_400_000, 1_925_647_200_000]
    assert len(run.json(f"{use} --until 2031-01-08 --every wed --dry-run")["days"]) == 1
    assert "--for goes without --every" in run(f"{use} --until 2031-01-08 --for 1h", status=2)
    wrong = run("template save x vm 2 --every mon --from 9:00 --project alpha", status=2)
    assert "--every, --from and --to go together" in wrong
    assert "request.length: found one, expected none where days are said (every)" in run(
        f"template save x vm 2 --for 1h {hours} --project alpha", status=1
    )
    run("template remove course --project alpha")


def test_a_ticket_is_shown_with_the_names_of_its_keys(run: CommandLine, user: str) -> None:
    """As it is beside a deploy file; who may not look into sites and brokers has the names that the project knows."""
    run("lease request vm 1 --for 1h --name shown --wait-for granted", token=user)
    for token in ({"token": user}, {}):
        told = run("ticket show --lease shown --actor alpha", **token)
        assert [name in told for name in ("site (", "broker (", "alpha (")] == [True] * 3, told
    run("lease close shown", token=user)


def test_daemons_are_the_same_by_both_ways(run: CommandLine, user: str) -> None:
    """The gateway is one of them: it says how it is, and reads its file anew, but its API is not asked that way, where
    no token's time counts.
    """
    operator = run.world.token("oscar", "operator")
    by_socket, by_url = run.json("status"), run.json("status", operator)
    assert [(one["name"], one["role"], one["pid"]) for one in by_url] == [
        (one["name"], one["role"], one["pid"]) for one in by_socket
    ]
    assert by_url[-1] == by_socket[-1]
    assert by_url[-1]["role"] == "gateway"
    assert run("reload", token=operator) == run("reload")
    assert run("clock accept", token=operator) == run("clock accept")
    asked = pack({"id": 1, "kind": "command", "name": "api", "arguments": {"method": "GET", "path": "/tokens"}})
    answer = httpx.post(
        f"{run.url}/api/v1/control/web", content=asked,
        headers={"authorization": f"Bearer {operator}", "content-type": MEDIA_TYPE},
    )  # fmt: skip
    assert answer.json()["detail"] == "oscar may not command api at web"


def test_who_may_not_look_into_daemons_sees_whether_they_run(run: CommandLine, user: str) -> None:
    """Of the own project all."""
    rows = {one["name"]: one for one in run.json("status", user)}
    assert rows.keys() == {"alpha", "broker", "site", "web"}
    assert rows["alpha"]["leases"] == run.json("status alpha")[0]["leases"]
    assert rows["site"] == {"name": "site", "role": "authority", "shell": {"state": "running", "problem": ""}}
