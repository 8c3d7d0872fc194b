"""Key files, their passphrases, and their succession.

A secret key is one line in a file that only its owner may read; its public key lies beside it in ``NAME.pub``. The
line's tag says how the rest is to be read: ``leasekit-key-1`` and 64 hex digits, or, under a passphrase,
``leasekit-key-scrypt-1``, the cost (a power of two), salt, nonce and sealed key in hex. The passphrase is stretched
with scrypt, and the key sealed with ChaCha20-Poly1305, which covers the rest of the line too.
No error, log or repr ever holds what a secret file holds.

A passphrase comes from a file, or from somebody at a terminal; never from an argument, which others see. A key is
changed by a new key beside the old one, and a statement by which others learn of it.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from leasekit.config.errors import UnusableError
from leasekit.core.claims.signed import KEY_BYTES, SUCCESSION_MAX, Keypair, Succession, decode_succession, succeed
from leasekit.core.errors import TicketError
from leasekit.core.time import Instant

SECRET_TAG: Final = "leasekit-key-1"
SEALED_TAG: Final = "leasekit-key-scrypt-1"
PUBLIC_TAG: Final = "leasekit-public-1"
FILE_MAX: Final = 4096
"""More bytes than any key file has."""
SCRYPT_COST = 16
"""The power of two that is scrypt's n for new keys: 64 MiB and a few tenths of a second for each guess."""
COST_MIN: Final = 10
COST_MAX: Final = 20
"""The largest that a file may ask for: 1 GiB."""

Passphrase = Callable[[], bytes]
"""Gives the passphrase of a key when it is needed. May raise :class:`KeyFileError`."""

_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_SEALED: Final = re.compile(r"(\d{1,2}) ([0-9a-f]{32}) ([0-9a-f]{24}) ([0-9a-f]{96})")
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_HOW: Final = "its passphrase: name a file with passphrase_file, --passphrase-file or LEASEKIT_PASSPHRASE_FILE"


class KeyFileError(UnusableError):
    """A key file that is missing, unreadable, unsafe or malformed; the text names the file and what to do."""


class KeyFileMissing(KeyFileError):
    """There is no such file."""


class KeyFileLocked(KeyFileError):
    """The key is under a passphrase, and there is none or a wrong one."""


def public_path(path: Path) -> Path:
    """Where the public key of the secret key at ``path`` lies: ``site.key`` has ``site.pub``."""
    return path.with_name(f"{path.name.removesuffix('.key')}.pub")


def looks_like_key(text: str) -> bool:
    """Whether ``text`` is a key in hex, or a line of a key file, where perhaps a path was meant."""
    return _HEX.fullmatch(text.strip()) is not None or SECRET_TAG in text or SEALED_TAG in text


def new_key(path: Path, passphrase: bytes | None = None) -> Keypair:
    """Make a new key pair at ``path`` (mode 0600; missing folders are made with mode 0700) and its public key beside
    it. With a ``passphrase`` the file holds the key under it.

    Either the whole file is there afterwards or none. Raises :class:`KeyFileError`; an existing file is never
    overwritten.
    """
    public = public_path(path)
    if path.exists():
        raise KeyFileError(f"{path}, which exists", "a file that does not: keys are never overwritten")
    if public.exists():
        allowed = f"the secret key from where it is kept; or no {public.name}, to have another key made"
        raise KeyFileError(f"{public}, which exists, and no {path.name}, which belongs to it", allowed)
    secret = os.urandom(KEY_BYTES)
    pair = Keypair(secret)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KeyFileError(f"{path.parent}, which can't be made ({error.strerror})", "a folder for keys") from None
    try:
        text = f"{SECRET_TAG} {secret.hex()}" if passphrase is None else _seal(secret, passphrase)
        _write_new(path, f"{text}\n", 0o600)
    except FileExistsError:
        raise KeyFileError(f"{path}, which exists", "a file that does not: keys are never overwritten") from None
    except OSError as error:
        raise KeyFileError(f"{path}, which can't be written ({error.strerror})", "a folder that can be") from None
    write_public(path, pair)
    return pair


def write_public(path: Path, pair: Keypair) -> None:
    """Write the public key of the secret key at ``path`` beside it, if it isn't there. Raises :class:`KeyFileError`."""
    public = public_path(path)
    if not public.exists():  # where the disk is full even what is there already could not be written
        try:
            _write_new(public, f"{PUBLIC_TAG} {pair.public.hex()}\n", 0o644)
        except FileExistsError:
            pass  # by another process, just now
        except OSError as error:
            raise KeyFileError(f"{public}, which can't be written ({error.strerror})", "a folder that can be") from None
    if load_public(str(public)) != pair.public:
        raise KeyFileError(
            f"{public}, which is not the public key of {path}",
            "the two to belong together: move the wrong one away",
        )


def load_key(path: Path, passphrase: Passphrase | None = None) -> Keypair:
    """The key pair in the file at ``path``; ``passphrase`` is only called for a key that is under one.

    Raises :class:`KeyFileMissing`, :class:`KeyFileLocked`, or :class:`KeyFileError` where others may read the file or
    it holds no key.
    """
    tag, rest = _secret_line(path)
    if tag == SECRET_TAG:
        return Keypair(bytes.fromhex(rest))
    if passphrase is None:
        raise KeyFileLocked(f"{path}, which is under a passphrase", _HOW)
    return Keypair(_unseal(path, rest, passphrase()))


def check_key(path: Path) -> bool:
    """Look at the file of a secret key without unlocking it; whether it is under a passphrase. Raises as
    :func:`load_key`.
    """
    return _secret_line(path)[0] == SEALED_TAG


def folder_trouble(path: Path) -> str:
    """What is wrong with the folder that the key file at ``path`` is in, in words; empty if nothing is."""
    folder = path.absolute().parent
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return ""  # whoever reads the key finds out
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return f"{folder} has mode {mode:04o}: others can replace the keys in it; run `chmod 700 {folder}`"
    if mode & 0o055:
        return f"{folder} has mode {mode:04o}: others can see which keys are in it; run `chmod 700 {folder}`"
    return ""


def _secret_line(path: Path) -> tuple[str, str]:
    """Tag and rest of a secret key file, checked for form. Raises as :func:`load_key`."""
    tag, _, rest = _read(path, secret=True).strip().partition(" ")
    if tag == PUBLIC_TAG:
        raise KeyFileError(f"a public key in {path}", f"a secret one ({SECRET_TAG}), which makes signatures")
    if tag == SECRET_TAG:
        if not _HEX.fullmatch(rest):
            raise KeyFileError(f"{path}, whose key is damaged", f"{SECRET_TAG} and 64 hex digits")
    elif tag == SEALED_TAG:
        match = _SEALED.fullmatch(rest)
        if match is None or not COST_MIN <= int(match[1]) <= COST_MAX:
            raise KeyFileError(f"{path}, whose key is damaged", f"{SEALED_TAG}, the cost, and three values in hex")
    else:
        raise KeyFileError(f"{path}, which is no key file of a known kind", f"a line that begins with {SECRET_TAG}")
    return tag, rest


def _seal(secret: bytes, passphrase: bytes) -> str:
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    head = f"{SEALED_TAG} {SCRYPT_COST} {salt.hex()} {nonce.hex()}"
    sealed = ChaCha20Poly1305(_stretch(passphrase, salt, SCRYPT_COST)).encrypt(nonce, secret, head.encode("ascii"))
    return f"{head} {sealed.hex()}"


def _unseal(path: Path, rest: str, passphrase: bytes) -> bytes:
    cost, salt, nonce, sealed = rest.split(" ")
    key = _stretch(passphrase, bytes.fromhex(salt), int(cost))
    head = f"{SEALED_TAG} {cost} {salt} {nonce}".encode("ascii")
    try:
        return ChaCha20Poly1305(key).decrypt(bytes.fromhex(nonce), bytes.fromhex(sealed), head)
    except InvalidTag:
        raise KeyFileLocked(f"another passphrase than that of {path}, or a damaged file", "its passphrase") from None


def _stretch(passphrase: bytes, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=2**cost, r=8, p=1).derive(passphrase)


def load_public(text: str, base: Path | None = None) -> bytes:
    """The public key that ``text`` is (64 hex digits) or names (the path of a .pub file, relative to ``base``).

    Raises :class:`KeyFileMissing` or :class:`KeyFileError`.
    """
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    if SECRET_TAG in text or SEALED_TAG in text:
        raise KeyFileError("the text of a secret key file", "a public key: 64 hex digits, or the path of a .pub file")
    path = Path(text) if base is None else base / text
    tag, _, rest = _read(path, secret=False).strip().partition(" ")
    if tag in (SECRET_TAG, SEALED_TAG):
        raise KeyFileError(f"a secret key in {path}", f"the public one: name {public_path(path)}")
    digits = rest if tag == PUBLIC_TAG else tag
    if not _HEX.fullmatch(digits) or (rest and tag != PUBLIC_TAG):
        raise KeyFileError(f"{path}, which holds no public key", f"{PUBLIC_TAG} and 64 hex digits")
    return bytes.fromhex(digits)


def write_text(path: Path, text: str) -> None:
    """Write a public file whole, or not at all. Raises :class:`KeyFileError`; nothing is overwritten."""
    try:
        _write_new(path, text, 0o644)
    except OSError as error:
        raise KeyFileError(f"{path}, which can't be written ({error.strerror})", "a file that is new") from None


def _bytes(path: Path, most: int, allowed: str, *, called: str = "", secret: bool = False, missing: str = "") -> bytes:
    """At most so many bytes of a file, which is ``called`` so; of one that is ``secret`` only if its owner alone may
    read it. The mode that is checked is that of the file which is read, whatever its name leads to later. Raises
    :class:`KeyFileError`, and, where ``missing`` says what to do then, :class:`KeyFileMissing`.
    """
    called = called or str(path)
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if secret and mode & 0o077:
                found = f"{called} with mode {mode:04o}, which others may read"
                raise KeyFileError(found, f"mode 0600: run `chmod 600 {path}`")
            return file.read(most)
    except OSError as error:
        if missing and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise KeyFileMissing(f"no file {path}", missing) from None
        raise KeyFileError(f"{called}, which can't be read ({error.strerror})", allowed) from None


def _read(path: Path, *, secret: bool) -> str:
    """The text of a key file."""
    make = f"a key file: run `leasekit keys new {path}`, or set deployment.create_keys = true"
    missing = make if secret else "64 hex digits, or a .pub file: copy it there"
    data = _bytes(path, FILE_MAX + 1, "a key file that can be", secret=secret, missing=missing)
    if len(data) > FILE_MAX or not data.isascii():
        raise KeyFileError(f"{path}, which is no key file", f"a line of text of at most {FILE_MAX} characters")
    return data.decode("ascii")


def _write_new(path: Path, text: str, mode: int) -> None:
    """Write a file whole, or not at all; it must not exist. Raises ``OSError``."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, fails where there is a file already.
        Path(path).hardlink_to(name)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


ENVIRONMENT: Final = "LEASEKIT_PASSPHRASE_FILE"
"""Names the passphrase file of keys for which nothing else does."""
PASSPHRASE_MAX: Final = 1024
"""The longest passphrase, in bytes."""

Ask = Callable[[Path], str]
"""Asks somebody for the passphrase of the key at a path."""


def passphrase_of(key: Path, file: Path | None = None, ask: Ask | None = None) -> Passphrase | None:
    """How to get the passphrase of ``key``: from ``file``, from the file that the environment names, or by asking.
    None if there is no way.
    """
    environment = os.environ.get(ENVIRONMENT, "")
    named = file if file is not None else Path(environment) if environment else None
    if named is not None:
        return lambda: read_passphrase(named)
    if ask is not None:
        return lambda: check_passphrase(ask(key).encode("utf-8", "surrogateescape"), "what was typed")
    return None


def read_passphrase(path: Path) -> bytes:
    """The first line of the file at ``path``, which only its owner may read. Raises :class:`KeyFileError`."""
    called = f"the passphrase file {path}"
    data = _bytes(path, PASSPHRASE_MAX + 2, "a file", called=called, secret=True)
    return check_passphrase(data.split(b"\n", 1)[0].removesuffix(b"\r"), called)


def check_passphrase(passphrase: bytes, where: str) -> bytes:
    """``passphrase``, if it can be one. Raises :class:`KeyFileError`."""
    if not 0 < len(passphrase) <= PASSPHRASE_MAX:
        raise KeyFileError(f"{where} with {len(passphrase)} bytes", f"a passphrase of 1 to {PASSPHRASE_MAX} bytes")
    return passphrase


TAG: Final = "leasekit-succession-1"


@attrs.frozen(kw_only=True)
class Rotation:
    """What :func:`rotate` has made: the new key's file, the statement's file, and what it says."""

    key: Path
    statement: Path
    succession: Succession


def next_path(path: Path) -> Path:
    """Where the successor of the key at ``path`` lies: ``site.key`` is followed by ``site.next.key``."""
    return path.with_name(f"{path.name.removesuffix('.key')}.next.key")


def statement_path(path: Path) -> Path:
    """Where the succession of the key at ``path`` lies: beside it, in ``site.succession``."""
    return path.with_name(f"{path.name.removesuffix('.key')}.succession")


def rotate(
    path: Path,
    name: str,
    at: Instant,
    until: Instant,
    *,
    passphrase: Passphrase | None = None,
    new_passphrase: bytes | None = None,
) -> Rotation:
    """Make the successor of the key at ``path``, and the statement, signed by both keys, that ``name`` has it from
    ``at`` on. The old key stays where it is; the new one is under ``new_passphrase``, if that is given.

    A rotation that was broken off after its key was made goes on with that key. Raises
    :class:`~.keys.KeyFileError`; nothing that exists is overwritten.
    """
    old = load_key(path, passphrase)
    following, statement = next_path(path), statement_path(path)
    if statement.exists():
        raise KeyFileError(f"{statement}, which exists", "a key that is not being changed already")
    if following.exists():
        new = load_key(following, None if new_passphrase is None else lambda: new_passphrase)
    else:
        new = new_key(following, new_passphrase)
    try:
        succession = succeed(old, new, name, at, until)
    except TicketError as error:
        raise KeyFileError(
            f"a succession of {name!r} that can't be: {error}", "an end that is not before its begin"
        ) from None
    write_text(statement, f"{TAG} {succession.encode().hex()}\n")
    return Rotation(key=following, statement=statement, succession=succession)


def load_succession(path: Path) -> Succession:
    """The succession in the file at ``path``, its signatures unchecked. Raises :class:`~.keys.KeyFileError`."""
    data = _bytes(path, 4 * SUCCESSION_MAX, "a succession file")
    tag, _, rest = data.decode("ascii", "replace").strip().partition(" ")
    try:
        if tag != TAG:
            raise ValueError(f"it does not begin with {TAG}")
        return decode_succession(bytes.fromhex(rest))
    except (ValueError, TicketError) as error:
        raise KeyFileError(f"{path}, which holds no succession ({error})", f"{TAG} and its bytes in hex") from None
