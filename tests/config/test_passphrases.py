"""Keys under a passphrase, where passphrases come from, and how a key is changed for another."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from deploy_texts import SMALL, changed, faults, write

from leasekit.config import keys
from leasekit.config.identities import prepare
from leasekit.config.keys import (
    ENVIRONMENT,
    SEALED_TAG,
    KeyFileError,
    KeyFileLocked,
    check_key,
    folder_trouble,
    load_key,
    load_public,
    load_succession,
    looks_like_key,
    new_key,
    next_path,
    passphrase_of,
    public_path,
    read_passphrase,
    rotate,
    statement_path,
)
from leasekit.config.load import load
from leasekit.core.claims.signed import ED25519, check_succession

WORDS = b"open sesame"


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a passphrase costs to try is not what is tested here."""
    monkeypatch.setattr(keys, "SCRYPT_COST", keys.COST_MIN)
    monkeypatch.delenv(ENVIRONMENT, raising=False)


def secret_file(path: Path, text: bytes = WORDS + b"\n") -> Path:
    """A file for its owner only."""
    path.write_bytes(text)
    path.chmod(0o600)
    return path


def sealed(folder: Path) -> Path:
    """A key under the passphrase."""
    new_key(folder / "site.key", WORDS)
    return folder / "site.key"


# -- keys under a passphrase ---------------------------------------------------------------------------------------


def test_a_sealed_key_is_read_back_with_its_passphrase(tmp_path: Path) -> None:
    """The right passphrase gives the same key; the public file needs none."""
    made = new_key(tmp_path / "site.key", WORDS)
    assert load_key(tmp_path / "site.key", lambda: WORDS).public == made.public
    assert load_public(str(tmp_path / "site.pub")) == made.public
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    assert check_key(tmp_path / "site.key")


def test_a_sealed_file_holds_no_key_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the secret nor the passphrase is in the file, and two files of one key and passphrase are not alike."""
    secret = bytes(range(32))
    monkeypatch.setattr(keys, "KEY_BYTES", 32)
    first, second = keys._seal(secret, WORDS), keys._seal(secret, WORDS)
    assert first != second
    assert first.startswith(f"{SEALED_TAG} {keys.COST_MIN} ")
    for text in (first, second):
        assert secret.hex() not in text
        assert WORDS.decode() not in text
        assert WORDS.hex() not in text


@pytest.mark.parametrize("passphrase", [b"open sesam", b"Open sesame", b"open sesame ", b"\0"])
def test_another_passphrase_is_refused(tmp_path: Path, passphrase: bytes) -> None:
    """The message names the file, and holds neither passphrase."""
    path = sealed(tmp_path)
    with pytest.raises(KeyFileLocked, match=re.escape(str(path))) as raised:
        load_key(path, lambda: passphrase)
    assert "sesam" not in str(raised.value)


def test_without_a_passphrase_the_message_says_how(tmp_path: Path) -> None:
    """Who has none is told the three ways to give one."""
    with pytest.raises(KeyFileLocked, match="passphrase_file, --passphrase-file or LEASEKIT_PASSPHRASE_FILE"):
        load_key(sealed(tmp_path))


def test_a_passphrase_is_not_asked_for_in_vain(tmp_path: Path) -> None:
    """A key that is not under a passphrase is read without asking."""
    new_key(tmp_path / "site.key")

    def ask() -> bytes:
        raise AssertionError("nobody needs to be asked")

    assert not check_key(tmp_path / "site.key")
    load_key(tmp_path / "site.key", ask)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_sealed_file_can_not_be_changed(tmp_path: Path, at: int) -> None:
    """Cost, salt, nonce and sealed key are covered: one changed digit, and it opens no more."""
    path = sealed(tmp_path)
    parts = path.read_text().split()
    parts[at] = str(keys.COST_MIN + 1) if at == 1 else ("0" if parts[at][0] != "0" else "1") + parts[at][1:]
    path.write_text(" ".join(parts))
    with pytest.raises(KeyFileLocked):
        load_key(path, lambda: WORDS)


@pytest.mark.parametrize(
    "rest", ["", "10 ab cd ef", f"99 {'a' * 32} {'b' * 24} {'c' * 96}", f"9 {'a' * 32} {'b' * 24} x"]
)
def test_a_damaged_sealed_file_is_named(tmp_path: Path, rest: str) -> None:
    """A file that asks for too much memory, or is cut, is refused before any work is done."""
    path = secret_file(tmp_path / "site.key", f"{SEALED_TAG} {rest}\n".encode())
    with pytest.raises(KeyFileError, match="whose key is damaged"):
        load_key(path, lambda: WORDS)


def test_a_sealed_key_is_no_public_one(tmp_path: Path) -> None:
    """In the place of a public key it is refused like an open one, by its path and by its text."""
    path = sealed(tmp_path)
    for text in (str(path), path.read_text()):
        with pytest.raises(KeyFileError, match="secret key"):
            load_public(text)
    assert looks_like_key(path.read_text())


# -- folders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "words"),
    [(0o700, ""), (0o755, "see which keys"), (0o750, "see which"), (0o770, "replace"), (0o1777, "see")],
)
def test_folders_that_others_can_use(tmp_path: Path, mode: int, words: str) -> None:
    """A folder in which others can look, or worse, is reported with what to do; one's own is not."""
    new_key(tmp_path / "keys" / "site.key")
    (tmp_path / "keys").chmod(mode)
    trouble = folder_trouble(tmp_path / "keys" / "site.key")
    assert (words in trouble) and bool(words) == bool(trouble)
    assert not trouble or f"{mode:04o}" in trouble
    assert not trouble or f"chmod 700 {tmp_path}/keys" in trouble


# -- where passphrases come from -----------------------------------------------------------------------------------


def test_the_first_way_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is named goes before the environment's, that before asking; without any there is none."""
    named, other = secret_file(tmp_path / "a", b"named\n"), secret_file(tmp_path / "b", b"environment")
    key = tmp_path / "site.key"

    def answer(path: Path) -> str:
        return f"typed for {path.name}"

    found = passphrase_of(key, None, answer)
    assert found is not None
    assert found() == b"typed for site.key"
    monkeypatch.setenv(ENVIRONMENT, str(other))
    found = passphrase_of(key, None, answer)
    assert found is not None
    assert found() == b"environment"
    found = passphrase_of(key, named, answer)
    assert found is not None
    assert found() == b"named"
    monkeypatch.delenv(ENVIRONMENT)
    assert passphrase_of(key) is None


@pytest.mark.parametrize(
    ("text", "passphrase"),
    [(b"x", b"x"), (b"x\n", b"x"), (b"x\r\ny\n", b"x"), (b" x \n", b" x "), (b"\xff\n", b"\xff")],
)
def test_the_first_line_is_the_passphrase(tmp_path: Path, text: bytes, passphrase: bytes) -> None:
    """All of the first line but its end counts, whatever bytes they are."""
    assert read_passphrase(secret_file(tmp_path / "p", text)) == passphrase


@pytest.mark.parametrize("text", [b"", b"\n", b"\nx", b"x" * 1025], ids=["nothing", "empty", "second", "too long"])
def test_what_is_no_passphrase(tmp_path: Path, text: bytes) -> None:
    """An empty line, or one that is too long, is refused without being shown."""
    with pytest.raises(KeyFileError, match="1 to 1024 bytes") as raised:
        read_passphrase(secret_file(tmp_path / "p", text))
    assert "xxx" not in str(raised.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_passphrase_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """The file must be its owner's, like that of a key."""
    secret_file(tmp_path / "p").chmod(mode)
    with pytest.raises(KeyFileError, match=f"chmod 600 {tmp_path}/p") as raised:
        read_passphrase(tmp_path / "p")
    assert "sesame" not in str(raised.value)


def test_a_missing_passphrase_file_is_named(tmp_path: Path) -> None:
    """Its path is in the message."""
    with pytest.raises(KeyFileError, match=f"{tmp_path}/none"):
        read_passphrase(tmp_path / "none")


# -- deploy files --------------------------------------------------------------------------------------------------


def test_a_deployment_with_sealed_keys(tmp_path: Path) -> None:
    """Where the file names a passphrase file, missing keys are made under it, and read again with it."""
    secret_file(tmp_path / "pw")
    text = SMALL.replace('role = "authority"', 'role = "authority"\nkey = { passphrase_file = "../pw" }')
    deployment = load(write(tmp_path, text))
    first = prepare(deployment).public("site")
    assert check_key(tmp_path / "state" / "keys" / "site.key")
    assert not check_key(tmp_path / "state" / "keys" / "guest.key")
    assert prepare(load(write(tmp_path, text))).public("site") == first


def test_a_locked_key_keeps_an_actor_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config check` needs no passphrase; starting does, and the error names the actor's key."""
    path = tmp_path / "state" / "keys" / "site.key"
    made = new_key(path, WORDS)
    assert faults(write(tmp_path)) == {}
    deployment = load(write(tmp_path))
    with pytest.raises(Exception, match=r"actor\.site\.key: found .*under a passphrase"):
        prepare(deployment, ["site"])
    assert prepare(deployment, ["broker"]).public("site") == made.public
    assert prepare(deployment, ["site"], lambda key: WORDS.decode()).public("site") == made.public
    monkeypatch.setenv(ENVIRONMENT, str(secret_file(tmp_path / "pw")))
    assert prepare(deployment, ["site"]).public("site") == made.public


def test_a_folder_of_keys_that_others_can_see_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Starting goes on, with one warning for the folder, however many keys are in it."""
    deployment = load(write(tmp_path))
    prepare(deployment)
    assert caplog.text == ""
    (tmp_path / "state" / "keys").chmod(0o755)
    prepare(deployment)
    assert len(caplog.records) == 1
    assert f"chmod 700 {tmp_path}/state/keys" in caplog.text


@pytest.mark.parametrize(
    ("value", "key", "words"),
    [
        ('{ file = "a.key", passphrase = "geheim" }', "actor.site.key.passphrase", "an unknown key"),
        ("{ file = 5 }", "actor.site.key.file", "text in quotes"),
        ("5", "actor.site.key", "text in quotes"),
    ],
)
def test_key_tables_that_are_wrong(tmp_path: Path, value: str, key: str, words: str) -> None:
    """Each names the key, and a passphrase that stands where none may is not repeated."""
    found = faults(write(tmp_path, changed(('role = "authority"', f'role = "authority"\nkey = {value}'))))
    assert list(found) == [key]
    assert words in found[key]
    assert "geheim" not in found[key]


# -- changing keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passphrase", [None, WORDS])
def test_a_key_is_followed_by_another(tmp_path: Path, passphrase: bytes | None) -> None:
    """A new key lies beside the old one, which stays; the statement says so and is signed by both."""
    path = tmp_path / "site.key"
    old = new_key(path, passphrase)
    before = path.read_bytes()
    made = rotate(path, "site", 1000, 2000, passphrase=lambda: WORDS, new_passphrase=passphrase)
    assert (made.key, made.statement) == (tmp_path / "site.next.key", tmp_path / "site.succession")
    assert path.read_bytes() == before
    assert check_key(made.key) == (passphrase is not None)
    new = load_key(made.key, lambda: WORDS).public
    told = load_succession(made.statement)
    assert (told.name, told.old, told.new, told.at, told.until) == ("site", old.public, new, 1000, 2000)
    check_succession(ED25519, told.encode(), name="site", old=old.public)
    assert load_public(str(public_path(made.key))) == new != old.public


def test_a_rotation_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    """If the new key is there and no statement, the next try makes the statement for that key."""
    path = tmp_path / "site.key"
    new_key(path)
    new = new_key(next_path(path))
    assert rotate(path, "site", 1000, 2000).succession.new == new.public


def test_a_key_is_not_changed_twice_at_once(tmp_path: Path) -> None:
    """While a statement is there, it is neither replaced nor followed by another."""
    path = tmp_path / "site.key"
    new_key(path)
    rotate(path, "site", 1000, 2000)
    before = statement_path(path).read_bytes()
    with pytest.raises(KeyFileError, match="is not being changed already"):
        rotate(path, "site", 1000, 3000)
    assert statement_path(path).read_bytes() == before


def test_a_succession_that_can_not_be(tmp_path: Path) -> None:
    """An end before the beginning is refused in words."""
    new_key(tmp_path / "site.key")
    with pytest.raises(KeyFileError, match="an end that is not before its begin"):
        rotate(tmp_path / "site.key", "site", 2000, 1000)


@pytest.mark.parametrize(
    "text", ["", "leasekit-succession-1", "leasekit-succession-1 zz", "leasekit-succession-1 93", "x"]
)
def test_files_that_are_no_succession(tmp_path: Path, text: str) -> None:
    """Each is named, with what is wrong."""
    (tmp_path / "s").write_text(text)
    with pytest.raises(KeyFileError, match=f"{tmp_path}/s, which holds no succession"):
        load_succession(tmp_path / "s")
    with pytest.raises(KeyFileError, match="can't be read"):
        load_succession(tmp_path / "none")
