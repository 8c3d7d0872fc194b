"""What a site says of the controllers of its machines."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

import attrs

from leasekit.core.drivers import SiteFaultError
from leasekit.core.settings import DurationSetting, expecting
from leasekit.core.time import SECOND
from leasekit.drivers.commands import Command

SECRET_MAX: Final = 4096
"""The longest file that is taken for a secret, in bytes."""

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})|[0-9a-fA-F:]*:[0-9a-fA-F:.]*")
_SYSTEM: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+/?|")
_URL: Final = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::([0-9]{1,5}))?(?:/[A-Za-z0-9._~/-]*)?")
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\.?")


_user: Final = expecting(
    "a name of 1 to 64 printable characters", lambda value: 0 < len(value) <= 64 and value.isprintable()
)


def _url(_: object, __: attrs.Attribute[str], value: str) -> None:
    found = _URL.fullmatch(value)
    if found is None or not _is_host(found[1]) or not 1 <= int(found[2] or 1) <= 65_535:
        host = "a name (of labels with 1 to 63 letters, digits and dashes) or an address (of IPv6 in brackets)"
        raise ValueError(f"expected http:// or https:// and {host}, then a port and a path where they are needed")


def _is_host(text: str) -> bool:
    """Whether it can be the host of a URL: what can't is no error of the network, and no order is given in vain."""
    try:
        if text.startswith("["):
            ipaddress.IPv6Address(text[1:-1])
        elif not text.strip("0123456789."):
            ipaddress.IPv4Address(text)
        else:
            return _NAME.fullmatch(text) is not None
    except ValueError:
        return False
    return True


_word_list: Final = expecting(
    "a program and its arguments, without NUL", lambda words: not words or (words[0] and "\0" not in "".join(words))
)


_PORT: Final = attrs.validators.and_(attrs.validators.ge(1), attrs.validators.le(65_535))


@attrs.frozen(kw_only=True)
class Ipmi:
    """A BMC that speaks IPMI 2.0 over the network (RMCP+), through the program ``ipmitool``.

    ``password_file`` holds the password in one line, and must be closed to others (mode 0600). ``answer_timeout`` is
    for one answer, ``order_timeout`` until an order has its effect, ``soft_timeout`` until an operating system has
    switched itself off. ``cipher`` is the cipher suite where ipmitool's own choice is refused; ``efi`` says that the
    machine starts by UEFI, which some BMCs must be told with each start.
    """

    kind: ClassVar[str] = "ipmi"
    host: str = attrs.field(validator=attrs.validators.matches_re(_HOST))
    port: int = attrs.field(default=623, validator=_PORT)
    user: str = attrs.field(validator=_user)
    password_file: Path
    privilege: Literal["ADMINISTRATOR", "OPERATOR"] = "ADMINISTRATOR"
    cipher: int | None = None
    efi: bool = False
    answer_timeout: DurationSetting = 10 * SECOND
    order_timeout: DurationSetting = 60 * SECOND
    soft_timeout: DurationSetting = 120 * SECOND


@attrs.frozen(kw_only=True)
class Redfish:
    """A BMC that speaks Redfish. ``url`` is its root (``https://bmc7``); ``system`` the path of the machine, where it
    has more than one. Its certificate must be one of ``ca_file``, or of an authority that this machine knows.

    User and password go by HTTP's basic authentication. The rest is as for :class:`Ipmi`.
    """

    kind: ClassVar[str] = "redfish"
    url: str = attrs.field(validator=_url)
    system: str = attrs.field(default="", validator=attrs.validators.matches_re(_SYSTEM))
    user: str = attrs.field(validator=_user)
    password_file: Path
    ca_file: Path | None = None
    answer_timeout: DurationSetting = 10 * SECOND
    order_timeout: DurationSetting = 60 * SECOND
    soft_timeout: DurationSetting = 120 * SECOND


@attrs.frozen(kw_only=True)
class Script:
    """Commands of the site's own: a switched power strip, wake-on-LAN, a laboratory's relay.

    Each is a list of words, run without a shell. ``status`` prints ``on`` or ``off``; ``boot``, where it is given, gets
    ``network`` or ``disk`` as its last word; ``meter`` prints what the machine draws, in watts. Without ``soft_off``
    nothing is asked of operating systems; without ``boot`` the machine itself decides, which must be to try the network
    first; without ``meter`` it has none.
    """

    kind: ClassVar[str] = "script"
    on: Command = attrs.field(validator=[attrs.validators.min_len(1), _word_list])
    off: Command = attrs.field(validator=[attrs.validators.min_len(1), _word_list])
    status: Command = attrs.field(validator=[attrs.validators.min_len(1), _word_list])
    soft_off: Command = attrs.field(default=(), validator=_word_list)
    boot: Command = attrs.field(default=(), validator=_word_list)
    meter: Command = attrs.field(default=(), validator=_word_list)
    directory: Path = Path()
    answer_timeout: DurationSetting = 30 * SECOND
    order_timeout: DurationSetting = 60 * SECOND
    soft_timeout: DurationSetting = 120 * SECOND


ControllerSettings: TypeAlias = Ipmi | Redfish | Script


def read_secret(path: Path) -> str:
    """The one line of a file that only its owner can read. Raises ``DriverError`` naming the file, never its content.

    It is read anew for each order, so a password that was changed needs no restart.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SiteFaultError(f"password_file {path}: expected a file", retry=False)
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                mode = stat.S_IMODE(status.st_mode)
                text = f"password_file {path}: found mode {mode:04o}, others must not read it (chmod 600)"
                raise SiteFaultError(text, retry=False)
            content = file.read(SECRET_MAX + 1)
    except OSError as error:
        raise SiteFaultError(f"password_file {path}: can't be read: {error.strerror}", retry=False) from error
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(content) > SECRET_MAX or len(lines) != 1 or not lines[0] or not lines[0].isprintable():
        raise SiteFaultError(f"password_file {path}: expected one line of printable text", retry=False)
    return lines[0]
