"""Key files: their format, their mode, and that nothing secret gets out of them."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from leasekit.config.keys import (
    PUBLIC_TAG,
    SECRET_TAG,
    KeyFileError,
    KeyFileMissing,
    load_key,
    load_public,
    looks_like_key,
    new_key,
    public_path,
    write_public,
)
from leasekit.core.claims.signed import ED25519


def secret_of(path: Path) -> str:
    return path.read_text(encoding="ascii").split()[1]


def test_a_new_key_is_read_back(tmp_path: Path) -> None:
    """What new_key returns, load_key and load_public find in the files; it signs."""
    path = tmp_path / "keys" / "site.key"
    made = new_key(path)
    assert load_key(path).public == made.public == load_public(str(tmp_path / "keys" / "site.pub"))
    assert ED25519.verify(made.public, load_key(path).sign(b"x"), b"x")


def test_modes_and_format(tmp_path: Path) -> None:
    """The secret file is its owner's only, in a folder of the owner's; both carry their tag, nothing is left over."""
    path = tmp_path / "keys" / "site.key"
    pair = new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_text(encoding="ascii").startswith(f"{SECRET_TAG} ")
    assert public_path(path).read_text(encoding="ascii") == f"{PUBLIC_TAG} {pair.public.hex()}\n"
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["site.key", "site.pub"]


def test_two_keys_differ(tmp_path: Path) -> None:
    """No two new keys are alike."""
    assert new_key(tmp_path / "a.key").public != new_key(tmp_path / "b.key").public


@pytest.mark.parametrize(
    ("there", "words"), [("site.key", "never overwritten"), ("site.pub", "and no site.key, .* from where it is kept")]
)
def test_nothing_is_overwritten(tmp_path: Path, there: str, words: str) -> None:
    """Where either file exists a new key is refused, and the file stays as it was."""
    (tmp_path / there).write_text("mine", encoding="ascii")
    with pytest.raises(KeyFileError, match=words):
        new_key(tmp_path / "site.key")
    assert [entry.name for entry in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text(encoding="ascii") == "mine"


def test_of_several_at_once_one_makes_the_key(tmp_path: Path) -> None:
    """Threads that make the same key at once: one does, the others are refused, and the files belong together."""
    path, made, refused, start = tmp_path / "site.key", [], [], threading.Barrier(8)

    def make() -> None:
        start.wait()
        try:
            made.append(new_key(path))
        except KeyFileError as error:
            refused.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)
    assert load_key(path).public == made[0].public == load_public(str(public_path(path)))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """The message says the mode and how to mend it, and does not hold the key."""
    path = tmp_path / "site.key"
    new_key(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError) as raised:
        load_key(path)
    assert f"chmod 600 {path}" in str(raised.value)
    assert f"{mode:04o}" in str(raised.value)
    assert secret_of(path) not in str(raised.value)


def test_a_missing_key_says_how_to_make_it(tmp_path: Path) -> None:
    """The message names the file and the command."""
    with pytest.raises(KeyFileMissing, match=f"no file {tmp_path}/site.key.*leasekit keys new {tmp_path}/site.key"):
        load_key(tmp_path / "site.key")


SECRET = "5e" * 32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no key file of a known kind"),
        (f"leasekit-key-2 {SECRET}\n", "no key file of a known kind"),
        (f"{SECRET_TAG} {SECRET[:-1]}\n", "damaged"),
        (f"{SECRET_TAG} {SECRET}00\n", "damaged"),
        (f"{SECRET_TAG} {SECRET[:-1]}g\n", "damaged"),
        (f"{SECRET_TAG} {SECRET} {SECRET}\n", "damaged"),
        (f"{PUBLIC_TAG} {SECRET}\n", "a public key"),
        (f"{SECRET_TAG} {SECRET}" + " " * 5000, "no key file"),
        (f"{SECRET_TAG} {SECRET}é\n", "no key file"),
    ],
)
def test_malformed_key_files(tmp_path: Path, text: str, words: str) -> None:
    """Each gets a message that names the file and what is wrong, and holds nothing of the content."""
    path = tmp_path / "site.key"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=words) as raised:
        load_key(path)
    assert str(path) in str(raised.value)
    chain: BaseException | None = raised.value
    while chain is not None:
        assert "5e5e5e5e" not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


def test_a_key_file_that_is_a_folder(tmp_path: Path) -> None:
    """It is reported like any other file that can't be read."""
    with pytest.raises(KeyFileError, match="can't be read"):
        load_key(tmp_path)


def test_a_public_key_may_be_written_out() -> None:
    """64 hex digits stand for themselves, in either case."""
    assert load_public("AB" * 32) == b"\xab" * 32 == load_public("ab" * 32)


def test_public_files_may_hold_bare_hex(tmp_path: Path) -> None:
    """A .pub file may hold the digits alone; relative names start at the base."""
    (tmp_path / "site.pub").write_text("ab" * 32 + "\n", encoding="ascii")
    assert load_public("site.pub", tmp_path) == b"\xab" * 32


def test_a_secret_in_the_place_of_a_public_key(tmp_path: Path) -> None:
    """It is refused, with the name of the file that was meant, and never shown."""
    path = tmp_path / "site.key"
    new_key(path)
    for text in (str(path), path.read_text(encoding="ascii")):
        with pytest.raises(KeyFileError, match="secret key") as raised:
            load_public(text)
        assert secret_of(path) not in str(raised.value)


@pytest.mark.parametrize("text", ["", "ab" * 31, f"{PUBLIC_TAG} abc", "ab" * 32 + " more", "hello"])
def test_malformed_public_files(tmp_path: Path, text: str) -> None:
    """Anything but a public key is refused, and the file named."""
    (tmp_path / "site.pub").write_text(text, encoding="ascii")
    with pytest.raises(KeyFileError, match="holds no public key"):
        load_public(str(tmp_path / "site.pub"))


def test_a_lost_public_file_is_made_again(tmp_path: Path) -> None:
    """write_public restores the file, leaves a right one alone, and refuses to touch a wrong one."""
    path = tmp_path / "site.key"
    pair = new_key(path)
    public_path(path).unlink()
    write_public(path, pair)
    write_public(path, pair)
    assert load_public(str(public_path(path))) == pair.public
    public_path(path).write_text(f"{PUBLIC_TAG} {'00' * 32}\n", encoding="ascii")
    with pytest.raises(KeyFileError, match="belong together"):
        write_public(path, pair)


def test_only_the_ending_key_is_replaced() -> None:
    """Dots in names stay."""
    assert public_path(Path("a/site.v1.key")) == Path("a/site.v1.pub")
    assert public_path(Path("a/site.v1")) == Path("a/site.v1.pub")


def test_what_looks_like_a_key() -> None:
    """Hex of the right length and the lines of key files do; paths don't."""
    assert looks_like_key("ab" * 32)
    assert looks_like_key(f"{SECRET_TAG} x")
    assert not looks_like_key("keys/site.key")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where a folder is needed is a clear error."""
    (tmp_path / "keys").write_text("", encoding="ascii")
    with pytest.raises(KeyFileError, match="can't be"):
        new_key(tmp_path / "keys" / "site.key")
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]
