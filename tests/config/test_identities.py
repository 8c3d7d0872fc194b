"""Where actors get their keys from: files for daemons, a seed or nothing for emulations."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from deploy_texts import SMALL, changed, write

from leasekit.config.build import build
from leasekit.config.errors import ConfigErrors
from leasekit.config.identities import emulation_keys, prepare
from leasekit.config.keys import load_key, new_key, rotate
from leasekit.config.load import check, load
from leasekit.core.claims.signed import ED25519, UNSIGNED

EMULATION = '[emulation]\nhorizon = "1d"\n'


def faults_of(path: Path, *names: str) -> dict[str, str]:
    """What keeps the actors from being started, by key."""
    with pytest.raises(ConfigErrors) as raised:
        prepare(load(path), names or None)
    return {error.key: str(error) for error in raised.value.errors}


def test_keys_and_folders_are_made_where_that_is_allowed(tmp_path: Path) -> None:
    """Each actor gets a key and its folders; a second start finds the same keys."""
    deployment = load(write(tmp_path))
    keys = prepare(deployment)
    assert stat.S_IMODE(deployment.state.stat().st_mode) == 0o700
    assert len({keys.public(name) for name in deployment.actors}) == 3
    for name, spec in deployment.actors.items():
        assert keys.signer(name).public == keys.public(name) == load_key(spec.key).public
        assert ED25519.verify(keys.public(name), keys.signer(name).sign(b"x"), b"x")
    again = prepare(deployment)
    assert all(again.public(name) == keys.public(name) for name in deployment.actors)


def test_an_actor_does_not_sign_for_others(tmp_path: Path) -> None:
    """Of the actors that are not started only public keys are given out."""
    keys = prepare(load(write(tmp_path)), ["site"])
    assert keys.signer("site").public == keys.public("site")
    assert keys.public("broker")
    with pytest.raises(KeyError):
        keys.signer("broker")


def test_missing_keys_are_errors_that_say_how_to_make_them(tmp_path: Path) -> None:
    """Without create_keys every missing key of the actors is named, all at once, and none is made."""
    path = write(tmp_path, changed(("create_keys = true", "create_keys = false")))
    found = faults_of(path)
    assert set(found) == {"actor.site.key", "actor.broker.key", "actor.guest.key"}
    assert f"leasekit keys new {tmp_path}/state/keys/site.key" in found["actor.site.key"]
    assert not (tmp_path / "state" / "keys").exists()


def test_keys_of_peers_must_be_there(tmp_path: Path) -> None:
    """A peer's key is never made; when it is there, it is used."""
    text = '[deployment]\nstate = "s"\ncreate_keys = true\n[actor.broker]\nrole = "broker"\n'
    path = write(tmp_path, text + '[peer.site]\nrole = "authority"\nkey = "keys/site.pub"\n')
    assert "keys/site.pub" in faults_of(path)["peer.site.key"]
    made = new_key(tmp_path / "s" / "keys" / "site.key")
    assert prepare(load(path)).public("site") == made.public


def test_checking_a_file_finds_what_keeps_daemons_from_starting(tmp_path: Path) -> None:
    """Also where there is no state folder yet, and a start would make its own keys: those of peers are never made."""

    def found(text: str) -> dict[str, str]:
        path = write(tmp_path, f"[deployment]\ncreate_keys = true\n{text}")
        told = {error.key: str(error) for error in check(path)[0]}
        assert (faults_of(path) if told else {}) == told
        return told

    broker, peer = '[actor.broker]\nrole = "broker"\n', '[peer.{0}]\nrole = "guest"\nkey = "{1}"\n'
    assert "a .pub file: copy it there" in found(broker + peer.format("p", "keys/p.pub"))["peer.p.key"]
    twice = found(broker + peer.format("p", "5e" * 32) + peer.format("q", "5e" * 32))
    assert "found the key of p, expected a key of its own" in twice["peer.q.key"]
    long = f'{broker}listen = ["unix:{"x" * 120}"]\n'
    assert "at most 107 bytes" in found(long)["actor.broker.listen[0]"]
    (tmp_path / "file").write_text("")
    assert (
        "can't be made (File exists)" in found(f'{broker}store = "sqlite:{tmp_path}/file/b.db"\n')["actor.broker.store"]
    )


def test_checking_a_file_finds_keys_that_can_not_sign(tmp_path: Path) -> None:
    """Points of small order, or none at all: a peer with one could never connect. They keep nothing from starting."""
    text = '[deployment]\ncreate_keys = true\n[actor.broker]\nrole = "broker"\n[peer.p]\nrole = "guest"\nkey = "{}"\n'
    for key, odd in (("00" * 32, True), ("01" + "00" * 31, True), (new_key(tmp_path / "p.key").public.hex(), False)):
        faults, lines = check(write(tmp_path, text.format(key)))
        assert faults == []
        assert any(line.startswith(f"peer.p.key: found {key}, expected a key that can sign") for line in lines) == odd


def test_two_actors_with_one_key(tmp_path: Path) -> None:
    """A key that was copied is found: actors are told apart by their keys."""
    deployment = load(write(tmp_path))
    new_key(deployment.actors["site"].key)
    for ending in ("key", "pub"):
        data = (tmp_path / f"state/keys/site.{ending}").read_bytes()
        copy = tmp_path / f"state/keys/guest.{ending}"
        copy.write_bytes(data)
        copy.chmod(0o600)
    assert "the key of site" in faults_of(tmp_path / "deploy.toml")["actor.guest.key"]


def test_names_that_are_not_in_the_file(tmp_path: Path) -> None:
    """They are named, with those that are."""
    assert "no actor 'siet', expected one of: site, broker, guest" in faults_of(write(tmp_path), "siet")["actor"]


def test_paths_too_long_for_sockets(tmp_path: Path) -> None:
    """The key, the path and a way out are named, before anything listens."""
    state = tmp_path / ("x" * 100)
    with pytest.raises(ConfigErrors) as raised:
        prepare(load(write(tmp_path), state), ["site"])
    assert {error.key for error in raised.value.errors} == {"actor.site.control", "actor.site.listen[0]"}
    assert "--state" in str(raised.value)


def test_daemons_always_sign(tmp_path: Path) -> None:
    """A file with signatures off can't be started."""
    path = write(tmp_path, SMALL.replace("create_keys = true", "signatures = false") + EMULATION)
    assert "daemons always sign" in faults_of(path)["deployment.signatures"]


def test_a_state_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in its place is a clear error."""
    (tmp_path / "state").write_text("", encoding="utf-8")
    assert "can't be made" in str(faults_of(write(tmp_path)))


def test_processes_of_one_deployment_start_at_once(tmp_path: Path) -> None:
    """Whoever is first makes the keys; all see the same ones."""
    deployment = load(write(tmp_path))
    start, made, failed = threading.Barrier(6), [], []

    def begin(name: str) -> None:
        start.wait()
        try:
            made.append(prepare(deployment, [name]))
        except ConfigErrors as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(name,)) for name in [*deployment.actors] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(made) == 6
    for name in deployment.actors:
        assert len({keys.public(name) for keys in made}) == 1


def test_keys_that_an_actor_had_before(tmp_path: Path) -> None:
    """They are read with their successions, which must lead to the key that it has now."""
    prepare(load(write(tmp_path)))
    keys = tmp_path / "state" / "keys"
    made = rotate(keys / "site.key", "site", 5, 1000)
    text = '[actor.site]\nkey = { file = "keys/site.next.key", after = ["keys/site.key"] }\n'
    path = write(tmp_path, changed(("[actor.site]\n", text)))
    source = prepare(load(path))
    assert source.public("site") == made.succession.new
    assert [(one.signer.public, one.until) for one in source.former("site")] == [(made.succession.old, 1000)]
    actor = build(load(path), "site", keys=source).actor
    assert actor.signer.public == made.succession.new
    assert actor.keyring.signer_of(made.succession.old).public == made.succession.old
    new_key(keys / "other.key")
    wrong = write(tmp_path, changed(("[actor.site]\n", text.replace("site.next.key", "other.key"))), "wrong.toml")
    assert "which names" in faults_of(wrong, "site")["actor.site.key"]
    (keys / "site.succession").unlink()
    assert "site.succession" in faults_of(path, "site")["actor.site.key"]


def test_a_key_with_ones_before_it_is_never_made(tmp_path: Path) -> None:
    """Though keys may be made: a new one would be nobody's successor. Starting and checking the file both tell it, and
    nothing is written.
    """
    prepare(load(write(tmp_path)))
    keys = tmp_path / "state" / "keys"
    rotate(keys / "site.key", "site", 5, 1000)
    text = '[actor.site]\nkey = { file = "site.next.key", after = ["site.key"] }\n'
    path = write(tmp_path, changed(("[actor.site]\n", text)))
    for found in (faults_of(path), faults_of(path, "broker"), {e.key: str(e) for e in check(path)[0]}):
        assert "state/site.next.key" in found["actor.site.key"]
        assert "paths are relative to the state folder" in found["actor.site.key"]
        assert "create_keys" not in found["actor.site.key"]
    assert not (tmp_path / "state" / "site.next.key").exists()


def test_checking_a_file_looks_at_keys_that_were_changed(tmp_path: Path) -> None:
    """Each file of a rotation that is missing is told; where there is no state folder yet nothing can be said."""
    text = '[actor.site]\nkey = { file = "keys/site.next.key", after = ["keys/site.key"] }\n'
    plain = changed(("[actor.site]\n", text), ("create_keys = true", "create_keys = false"))
    path = write(tmp_path, plain)
    assert check(path)[0] == []
    keys = tmp_path / "state" / "keys"
    new_key(keys / "site.key")
    rotate(keys / "site.key", "site", 5, 1000)
    for other in ("broker", "guest"):
        new_key(keys / f"{other}.key")
    assert check(path)[0] == []
    for name, words in (("site.succession", "can't be read"), ("site.key", "had before"), ("site.next.key", "follows")):
        (keys / name).unlink()
        (error,) = check(path)[0]
        assert (error.key, name in error.found) == ("actor.site.key", True)
        assert words in str(error)


def test_emulated_keys(tmp_path: Path) -> None:
    """They follow from the seed, are real ones, and with signatures off there are none; no file is touched."""
    deployment = load(write(tmp_path, SMALL + EMULATION))
    keys = emulation_keys(deployment)
    assert not (tmp_path / "run").exists()
    assert ED25519.verify(keys.public("site"), keys.signer("site").sign(b"x"), b"x")
    assert keys.public("site") != keys.public("broker")
    other = emulation_keys(deployment.with_overrides({"emulation.seed": 1}))
    assert keys.public("site") != other.public("site")
    assert emulation_keys(load(write(tmp_path, SMALL + EMULATION))).public("site") == keys.public("site")
    unsigned = emulation_keys(deployment.with_overrides({"deployment.signatures": False}))
    assert (unsigned.scheme, unsigned.signer("site").sign(b"x")) == (UNSIGNED, b"")
    assert [entry.name for entry in tmp_path.iterdir()] == ["deploy.toml"]
