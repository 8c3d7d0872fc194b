"""The script driver: what commands are told, what they may answer, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest
import trio
from driver_harnesses import session_processes
from polling import PATIENCE

from leasekit.core.drivers import LEASE, SITE, UNIT, DriverError
from leasekit.core.settings import SettingsError
from leasekit.drivers.commands import OUTPUT_MAX, mark_of
from leasekit.drivers.script import properties_as_environment, read_properties

DUMP = """#!/usr/bin/env python3
import json, os, sys
told = {key: value for key, value in os.environ.items() if key.startswith("LEASEKIT_")}
print(json.dumps({"env": json.dumps(told), "stdin": sys.stdin.read(), "all": json.dumps(sorted(os.environ))}))
"""

NASTY = {
    "quote": 'it\'s "here"',
    "newline": "a\nb",
    "dots": "../../etc/passwd",
    "command": "$(touch pwned); `touch pwned`; | touch pwned",
    "unicode": "é𝄞\u202e",
    "key with $(touch pwned)": "value",
    "op": "not setup",
    "ümlaut": "u",
}


async def test_commands_are_told_all_about_the_action(script_harness, make_unit):
    """A command sees the action and its properties in its environment and on its standard input, byte for byte."""
    script_harness.write("dump.py", DUMP)
    driver = script_harness.make(setup=["./dump.py"])
    unit = make_unit("u1", number=12, properties={**NASTY, "lease.id": "x"})
    found = await driver.setup(unit)
    assert json.loads(found["stdin"]) == {
        "op": "setup", "unit": "u1", "lease": "lease-1", "type": "vm", "number": 12, "results": {},
        "properties": {**NASTY, "lease.id": "x"}, "guest": {},
    }  # fmt: skip
    assert json.loads(found["env"]) == {
        "LEASEKIT_OP": "setup", "LEASEKIT_UNIT": "u1", "LEASEKIT_LEASE": "lease-1", "LEASEKIT_TYPE": "vm",
        "LEASEKIT_NUMBER": "12", "LEASEKIT_LEASE_ID": "x", "LEASEKIT_QUOTE": NASTY["quote"],
        "LEASEKIT_NEWLINE": NASTY["newline"], "LEASEKIT_DOTS": NASTY["dots"], "LEASEKIT_COMMAND": NASTY["command"],
        "LEASEKIT_UNICODE": NASTY["unicode"], "LEASEKIT_KEY_WITH___TOUCH_PWNED_": "value", "LEASEKIT__MLAUT": "u",
    }  # fmt: skip
    assert not list(script_harness.directory.rglob("pwned"))


async def test_commands_do_not_see_the_daemons_environment(script_harness, make_unit, monkeypatch):
    """Only the inherited names, the settings' environment and the action are in a command's environment."""
    script_harness.write("dump.py", DUMP)
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("SITE_HINT", "y")
    for inherit, seen in (([], False), (["SITE_HINT"], True)):
        driver = script_harness.make(setup=["./dump.py"], inherit=inherit)
        names = json.loads((await driver.setup(make_unit("u1")))["all"])
        assert "SECRET_TOKEN" not in names
        assert ("SITE_HINT" in names) is seen
        assert "UNITS" in names


def test_colliding_keys_have_a_rule(make_unit):
    """Of keys that make one variable one with dots has it, and the action's own variables are never taken."""
    unit = make_unit("u1", properties={"a.b": "dot", "a-b": "dash", "a_b": "low", "unit": "fake", "A.B": "capital"})
    variables = properties_as_environment(unit, "setup")
    assert variables["LEASEKIT_A_B"] == "dot"
    assert variables["LEASEKIT_UNIT"] == "u1"


def test_guests_have_keys_of_their_own(make_unit):
    """Nothing that a guest says takes a variable of the site's, however it writes its keys."""
    words = {"lease.holder": "alice", "lease.end": "1000", "bmc.address": "192.0.2.1", "guest.image": "the site's"}
    keys = [*words, "lease_holder", "lease-end", "bmc_address", "BMC.ADDRESS", "unit", "op", "guest_image"]
    unit = make_unit("u1", properties=words, configuration=dict.fromkeys(keys, "mallory") | {"image": "debian"})
    site = properties_as_environment(make_unit("u1", properties=words), "setup")
    both = properties_as_environment(unit, "setup")
    assert {name: both[name] for name in site} == site
    assert all(name.startswith("LEASEKIT_GUEST_") for name in both.keys() - site.keys())
    assert both["LEASEKIT_GUEST_LEASE_HOLDER"] == both["LEASEKIT_GUEST_BMC_ADDRESS"] == "mallory"
    assert both["LEASEKIT_GUEST_IMAGE"] == "the site's"


async def test_several_commands_run_in_order_and_later_results_win(script_harness, make_unit):
    """Commands run one after the other; each sees what those before returned; the merge of all is the result."""
    script_harness.write("a.sh", """#!/bin/sh\necho '{"name": "a", "ip": "1"}'\n""")
    script_harness.write(
        "b.py",
        "#!/usr/bin/env python3\nimport json, sys\n"
        "seen = json.load(sys.stdin)['results']\nprint(json.dumps({'ip': '2', 'seen': str(seen)}))\n",
    )
    driver = script_harness.make(setup=[["./a.sh"], ["./b.py", "--flag"]])
    assert await driver.setup(make_unit("u1")) == {
        "name": "a",
        "ip": "2",
        "seen": "{'name': 'a', 'ip': '1'}",
    }


async def test_a_failed_command_stops_the_others(script_harness, make_unit):
    """After a command that failed none runs."""
    driver = script_harness.make(setup=[["false"], ["touch", "ran"]])
    with pytest.raises(DriverError, match="setup: false ended with exit status 1"):
        await driver.setup(make_unit("u1"))
    assert not (script_harness.directory / "ran").exists()


@pytest.mark.parametrize(
    ("script", "words", "retry"),
    [
        ("echo first >&2; echo 'no space left' >&2; exit 75", "exit status 75: no space left", True),
        ("echo gone >&2; exit 1", "exit status 1: gone", False),
        ("kill -KILL $$", "was killed by SIGKILL", True),
        ("printf 'evil\\033[2J\\nlast\\007 line' >&2; exit 2", "exit status 2: last line", False),
        ("echo hello", "something else than JSON, which begins with 'hello'", False),
        ("echo '[1]'", "found list, expected a table of string pairs", False),
        ("""echo '{"a": 1}'""", "a: found 1 (int), property values are strings", False),
        ("""echo '{"a": null}'""", "a: found None", False),
        ("""echo '{"a": "b"} {"c": "d"}'""", "something else than JSON", False),
        ("""echo '{"a": "\\ud800"}'""", "half of a surrogate pair", False),
        ("printf '\\377\\376'", "something else than JSON", False),
        ("head -c 200000 /dev/zero | tr '\\0' '['", "something else than JSON", False),
        ("yes", f"wrote more than {OUTPUT_MAX} bytes", False),
        ("sleep 3600 & yes", f"wrote more than {OUTPUT_MAX} bytes", False),
    ],
)
async def test_what_is_no_success_is_a_driver_error(script_harness, make_unit, script, words, retry):
    """Exit status, signals and garbage on standard output become a reason in words, retryable as documented."""
    driver = script_harness.make(setup=["sh", "-c", script])
    with trio.fail_after(PATIENCE), pytest.raises(DriverError) as caught:
        await driver.setup(make_unit("u1"))
    assert words in str(caught.value)
    assert str(caught.value).startswith("setup: sh ")
    assert str(caught.value).isprintable()
    assert caught.value.retry is retry
    assert harness_is_clean(script_harness)


def harness_is_clean(harness) -> bool:
    return session_processes(str(harness.units)) == []


async def test_no_output_is_no_properties(script_harness, make_unit):
    """A command that writes nothing, or only space, returns no properties."""
    assert await script_harness.make(setup=["true"]).setup(make_unit("u1")) == {}
    assert await script_harness.make(setup=["echo", ""]).setup(make_unit("u1")) == {}


async def test_a_command_need_not_read_its_input(script_harness, make_unit):
    """A megabyte of properties to a command that does not read them is no error."""
    properties = {f"key{n}": "v" * 10_000 for n in range(100)}
    assert await script_harness.make(setup=["true"]).setup(make_unit("u1", properties=properties)) == {}


async def test_properties_too_long_for_the_system_are_refused(script_harness, make_unit):
    """Properties beyond what the system takes as an environment are one DriverError, not worth a retry."""
    said = {f"key{n}": "v" * 16_384 for n in range(256)}
    with pytest.raises(DriverError, match="setup: true can't be started: Argument list too long") as caught:
        await script_harness.make(setup=["true"]).setup(make_unit("u1", configuration=said))
    assert (caught.value.retry, caught.value.blame) == (False, LEASE)


@pytest.mark.parametrize("value", ["a\0b", "half \ud800", "\udfff"])
async def test_text_that_no_variable_can_hold_keeps_nothing_from_running(script_harness, make_unit, value):
    """A NUL or half a character is U+FFFD in the environment, and what it was on standard input, in any action."""
    script_harness.write("dump.py", DUMP)
    driver = script_harness.make(setup=["./dump.py"], teardown=["touch", "gone"])
    words = {"properties": {"my.key": value}, "configuration": {"image": value}, "lease": f"lease{value}"}
    found = await driver.setup(make_unit("u1", **words))
    seen = json.loads(found["env"])
    assert {seen[f"LEASEKIT_{name}"] for name in ("MY_KEY", "GUEST_IMAGE")} == {
        re.sub("[\0\ud800-\udfff]", "\ufffd", value)
    }
    assert json.loads(found["stdin"])["guest"] == {"image": value}
    await driver.teardown(make_unit("u1", "teardown", 2, **words))
    assert (script_harness.directory / "gone").exists()


@pytest.mark.parametrize(
    ("status", "blame", "retry"),
    [(65, LEASE, False), (69, SITE, True), (75, UNIT, True), (1, UNIT, False), (64, UNIT, False)],
)
async def test_exit_statuses_say_whose_fault_it_is(script_harness, make_unit, status, blame, retry):
    """65 (EX_DATAERR) is the lease's fault, 69 (EX_UNAVAILABLE) the site's, as is what can't be started."""
    with pytest.raises(DriverError) as caught:
        await script_harness.make(setup=["sh", "-c", f"exit {status}"]).setup(make_unit("u1"))
    assert (caught.value.blame, caught.value.retry) == (blame, retry)
    script_harness.write("there.sh", "#!/bin/sh\n")
    driver = script_harness.make(setup=["./there.sh"])
    (script_harness.directory / "there.sh").unlink()
    with pytest.raises(DriverError, match="can't be started: No such file") as caught:
        await driver.setup(make_unit("u1"))
    assert caught.value.blame == SITE


async def test_what_a_command_says_goes_to_the_log(script_harness, make_unit):
    """Lines of standard error are logged as they come, while the command still runs, without control characters."""
    script = "echo one >&2; printf 'two\\033[31m\\n' >&2; until [ -e go ]; do sleep 0.01; done; printf three >&2"
    driver = script_harness.make(setup=["sh", "-c", script])
    seen = trio.Event()

    def log(line: str) -> None:
        make_unit.lines.append(line)
        if len(make_unit.lines) == 2:
            seen.set()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.setup, make_unit("u1", log=log))
            await seen.wait()
            (script_harness.directory / "go").touch()
    assert make_unit.lines == ["one", "two [31m", "three"]


async def test_endless_talk_is_cut(script_harness, make_unit):
    """Long lines are cut in pieces and lines beyond the limit are left out, with a word about it."""
    driver = script_harness.make(setup=["sh", "-c", "head -c 30000 /dev/zero | tr '\\0' x >&2; seq 1 12000 >&2"])
    await driver.setup(make_unit("u1"))
    assert max(map(len, make_unit.lines)) <= 8192 + 3
    assert make_unit.lines[-1] == "(further lines are left out after 10000)"
    assert len(make_unit.lines) == 10_001


async def test_what_a_command_leaves_running_goes_on(script_harness, make_unit):
    """A command that succeeds may leave a process; one that holds the pipes is waited for briefly, not for ever."""
    driver = script_harness.make(setup=["sh", "-c", """sleep 3600 & echo '{"a": "b"}'"""])
    start = time.monotonic()
    assert await driver.setup(make_unit("u1")) == {"a": "b"}
    assert time.monotonic() - start < 10
    [left] = session_processes(str(script_harness.units))
    os.kill(left, 9)


async def test_cancelling_kills_the_whole_group(script_harness, make_unit):
    """On cancel SIGTERM goes to all of the command's session, and SIGKILL to those that do not heed it."""
    script_harness.write(
        "tree.sh", "#!/bin/sh\nsh -c 'trap \"\" TERM; echo up >&2; while :; do sleep 1; done' &\nsleep 3600\n"
    )
    driver = script_harness.make(setup=["./tree.sh"])
    started = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.setup, make_unit("u1", log=lambda line: started.set()))
            await started.wait()
            assert len(session_processes(str(script_harness.units))) >= 2
            nursery.cancel_scope.cancel()
    assert harness_is_clean(script_harness)


async def test_a_command_may_clean_up_when_cancelled(script_harness, make_unit):
    """A command that heeds SIGTERM has the grace time for it."""
    script = "trap 'touch cleaned; exit 1' TERM; echo up >&2; while :; do sleep 0.05; done"
    driver = script_harness.make(setup=["sh", "-c", script], grace="10s")
    started = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.setup, make_unit("u1", log=lambda line: started.set()))
            await started.wait()
            nursery.cancel_scope.cancel()
    assert (script_harness.directory / "cleaned").exists()
    assert harness_is_clean(script_harness)


async def test_actions_without_a_command(script_harness, make_unit):
    """Without commands setup, teardown, join and leave do nothing, modify is refused, and probe knows nothing."""
    nothing = {action: [] for action in ("setup", "teardown", "modify", "join", "leave", "probe")}
    driver = script_harness.make(**nothing)
    assert await driver.setup(make_unit("u1")) == {}
    await driver.teardown(make_unit("u1", "teardown"))
    assert await driver.join(make_unit("lease/u1", "join")) == {}
    await driver.leave(make_unit("lease/u1", "leave"))
    with pytest.raises(DriverError, match="no command for modify") as caught:
        await driver.modify(make_unit("u1", "modify"))
    assert not caught.value.retry
    assert (await driver.probe(make_unit("u1", "probe"))).state == "unknown"


async def test_probe_reads_state_detail_and_numbers(script_harness, make_unit):
    """A probe's state, detail and numbers come from its output; a wrong state or number is named."""
    out = '{"state": "down", "detail": "on\\nfire", "load": "0.5"}'
    found = await script_harness.make(probe=["echo", out]).probe(make_unit("u1"))
    assert (found.state, found.detail, found.measured) == ("down", "on fire", {"load": 0.5})
    assert (await script_harness.make(probe=["true"]).probe(make_unit("u1"))).state == "up"
    with pytest.raises(DriverError, match="found state 'gone', expected one of: up, down, unknown"):
        await script_harness.make(probe=["echo", '{"state": "gone"}']).probe(make_unit("u1"))
    with pytest.raises(DriverError, match="found load = 'high', expected a number"):
        await script_harness.make(probe=["echo", '{"load": "high"}']).probe(make_unit("u1"))


async def test_operations_are_commands_too(script_harness, make_unit):
    """An operator's action runs its command, with its arguments on standard input."""
    script_harness.write("dump.py", DUMP)
    driver = script_harness.make(operations={"reboot": ["./dump.py"]})
    found = await driver.operate(make_unit("u1", "operate"), "reboot", {"hard": True})
    told = json.loads(found["stdin"])
    assert (told["op"], told["operation"], told["arguments"]) == ("operate", "reboot", {"hard": True})
    assert driver.operations == {"reboot"}


def test_programs_are_checked_when_the_driver_is_made(script_harness):
    """Every missing or not executable program is named, all at once, with its key."""
    (script_harness.directory / "plain.txt").write_text("no program")
    with pytest.raises(SettingsError) as caught:
        script_harness.make(
            setup=[["true"], ["./missing.sh"]], teardown=["./plain.txt"], operations={"reboot": ["no-such-program"]}
        )
    missing, plain, program = caught.value.errors
    assert re.fullmatch(r"script\.setup\[1\]: found './missing.sh', there is no file /.*/missing.sh", missing)
    assert re.fullmatch(r"script\.teardown\[0\]: .*/plain.txt is not executable \(chmod \+x\)", plain)
    assert "script.operations.reboot[0]: found 'no-such-program', there is no such program" in program


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("setup", "rm -rf /", "script.setup: found 'rm -rf /', but expected a command as a list of words"),
        ("setup", [["ok"], []], "script.setup: found a list, but a command is a list of words"),
        ("setup", ["a", 1], "script.setup: found a list, but a command is a list of words"),
        ("operations", [], "script.operations: found an empty list, but expected a table of commands"),
        ("grace", "x", "script.grace: found 'x', expected a duration"),
        ("setpu", [], "script.setpu: found an unknown key, expected one of: "),
        ("directory", "/nowhere/at/all", "script.directory: found '/nowhere/at/all', there is no directory"),
    ],
)
def test_bad_settings_are_named(script_harness, key, value, words):
    """What is no command, and every other fault of the settings, is named with its key."""
    with pytest.raises(SettingsError) as caught:
        script_harness.make(**{key: value})
    assert caught.value.errors[0].startswith(words)


async def test_a_program_that_vanished_is_reported(script_harness, make_unit):
    """A program that is gone by the time it is needed is a DriverError."""
    script_harness.write("soon-gone.sh", "#!/bin/sh\n")
    driver = script_harness.make(setup=["./soon-gone.sh"])
    (script_harness.directory / "soon-gone.sh").unlink()
    with pytest.raises(DriverError, match=r"setup: soon-gone.sh can't be started: No such file"):
        await driver.setup(make_unit("u1"))


def test_output_limits_are_those_of_property_lists():
    """A command can't return more pairs, or longer ones, than a property list may hold."""
    with pytest.raises(DriverError, match="found 300 pairs"):
        read_properties(json.dumps({str(n): "x" for n in range(300)}).encode(), "setup: x")
    with pytest.raises(DriverError, match="at most 16384"):
        read_properties(json.dumps({"k": "x" * 20_000}).encode(), "setup: x")


async def test_what_an_earlier_daemon_has_set_up_goes_on(script_harness, make_unit):
    """What a command leaves running when it ends well is the unit's, whichever daemon comes next."""
    script_harness.write("stays.sh", "#!/bin/sh\nsleep 3600 </dev/null >/dev/null 2>&1 &\n")
    given = {"setup": ["./stays.sh"], "teardown": ["true"], "probe": ["true"]}
    await script_harness.make(**given).setup(make_unit("u1"))
    left = session_processes(str(script_harness.units))
    assert left
    try:
        await script_harness.make(**given).probe(make_unit("u1", "probe", 2))
        assert session_processes(str(script_harness.units)) == left
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


async def test_several_actions_may_find_what_an_earlier_daemon_was_at(script_harness, make_unit, monkeypatch):
    """A probe, and a teardown, of one unit at the same time: both end it, and go on."""
    monkeypatch.setattr("leasekit.drivers.commands.abandoned", lambda: {mark_of("u1", "lease-1"): []})
    driver = script_harness.make(probe=["true"], teardown=["true"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.teardown, make_unit("u1", "teardown", 2, lease="lease-1"))
        nursery.start_soon(driver.probe, make_unit("u1", "probe", 1, lease="lease-1"))
