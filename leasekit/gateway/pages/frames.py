"""What every page is made of: its frame, the files that it loads, and the headers that go with it."""

from __future__ import annotations

import functools
import hashlib
import mimetypes
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from jinja2 import Environment

ROOM: Final = files("leasekit.gateway.pages")
SAFE: Final = {
    "cache-control": "no-store", "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    "referrer-policy": "same-origin", "cross-origin-opener-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
}  # fmt: skip
"""Headers of every page: scripts and styles come from files of ours, and no text is ever made into either."""
FOREVER: Final = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}


@attrs.frozen
class WebPage:
    """A page: the name of its module, its title, and its path; ``office``: who sees all has a link to it."""

    name: str
    title: str
    path: str
    office: bool = False

    @property
    def in_menu(self) -> bool:
        """Whether one can go there without naming a thing."""
        return "{" not in self.path


def _read_static() -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in (ROOM / "static").iterdir() if one.is_file()}


STATIC: Final = _read_static()
VERSION: Final = hashlib.blake2b(b"".join(STATIC[name] for name in sorted(STATIC)), digest_size=6).hexdigest()
"""Part of the path of all files, so that browsers keep them for ever and still have those of another version."""


async def _static(request: Request) -> Response:
    data = STATIC.get(request.path_params["file"])
    if data is None or request.path_params["version"] != VERSION:
        return Response("there is no such file", status_code=HTTPStatus.NOT_FOUND, headers=SAFE)
    kind = mimetypes.guess_type(request.path_params["file"])[0]
    return Response(data, media_type=kind, headers=FOREVER)


@attrs.define(eq=False)
class PageFrames:
    """Makes pages whose paths begin with ``base``, and which ask an API at ``api``."""

    base: str
    api: str

    @functools.cached_property
    def _templates(self) -> Environment:
        from jinja2 import Environment, FunctionLoader, StrictUndefined  # not before somebody has a browser

        read = FunctionLoader(lambda name: (ROOM / "templates" / name).read_text())
        return Environment(
            loader=read, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )

    def made(self, template: str, request: Request, status: int = HTTPStatus.OK, **values: Any) -> Response:
        """A page, in the look that its browser asks for."""
        look = request.cookies.get("leasekit-look", "")
        text = self._templates.get_template(template).render(
            base=self.base, api=self.api, static=f"{self.base}/static/{VERSION}",
            look=look if look in ("light", "dark") else "", **values,
        )  # fmt: skip
        return Response(text, status_code=status, media_type="text/html", headers=SAFE)

    def static(self) -> Route:
        """The route of the files that pages load."""
        return Route(f"{self.base}/static/{{version}}/{{file}}", _static, methods=["GET"])
