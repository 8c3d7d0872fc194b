"""The paths of the pages: their frames, what they load, and how one logs in and out."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import attrs
from jinja2 import Environment, FunctionLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from leasekit.client.shapes import SessionRequest
from leasekit.core.errors import LeasekitError
from leasekit.core.time import SECOND
from leasekit.gateway.accounts import SESSION, begin_session, close_session, open_session
from leasekit.gateway.callers import NOBODY
from leasekit.gateway.cookies import is_foreign, session_of, set_session, word_of
from leasekit.gateway.incoming import caller_of, read_body
from leasekit.gateway.pages.openid import COOKIE, BegunLogin, way_to, who_came_back
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.rates import network
from leasekit.gateway.routing import BASE, Call

if TYPE_CHECKING:
    from leasekit.gateway.door import GatewayDoor

ROOM: Final = files("leasekit.gateway.pages")
FORM: Final = "application/x-www-form-urlencoded"
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
HERE: Final = re.compile(r"/(?![/\\])[\x21-\x7e]{0,1900}")
"""Where somebody may be sent after the login: a path of this gateway."""


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


PAGES: Final = (
    WebPage("calendar", "Calendar", "/calendar"),
    WebPage("leases", "Leases", "/leases"),
    WebPage("lease", "Lease", "/leases/{lease}"),
    WebPage("request", "Request", "/request"),
    WebPage("approvals", "Approvals", "/approvals"),
    WebPage("sites", "Sites", "/sites", office=True),
    WebPage("claims", "Claims", "/claims", office=True),
    WebPage("usage", "Usage", "/usage"),
    WebPage("audit", "Audit", "/audit"),
)
"""All pages, in the order of the menu."""


def page_routes(door: GatewayDoor, base: str) -> list[Route]:
    """The routes of the pages of a ``door``, whose paths begin with ``base``."""
    pages = _Pages(door, base)
    made = [Route(f"{base}{one.path}", pages.shows(one), methods=["GET"]) for one in PAGES]
    return [
        *made,
        Route(f"{base}/", pages.home, methods=["GET"]),
        Route(f"{base}/login", pages.login, methods=["GET"]),
        Route(f"{base}/login", pages.log_in, methods=["POST"]),
        Route(f"{base}/login/openid", pages.begin_login, methods=["GET"]),
        Route(f"{base}/callback", pages.come_back, methods=["GET"]),
        Route(f"{base}/logout", pages.log_out, methods=["POST"]),
        Route(f"{base}/static/{{version}}/{{file}}", _static, methods=["GET"]),
    ]


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
class _Pages:
    """The pages of a gateway's ``door``."""

    door: GatewayDoor
    base: str
    _templates: Environment = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        read = FunctionLoader(lambda name: (ROOM / "templates" / name).read_text())
        self._templates = Environment(
            loader=read, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )

    async def home(self, request: Request) -> Response:
        """The calendar is what one comes for."""
        return RedirectResponse(f"{self.base}{PAGES[0].path}", headers=SAFE)

    def shows(self, page: WebPage) -> Callable[[Request], Awaitable[Response]]:
        """What answers the path of a page: its frame, or the way to the login."""

        async def show(request: Request) -> Response:
            try:
                caller = await caller_of(self.door, request.headers, changes=False)
            except ProblemError as problem:
                if problem.status != HTTPStatus.UNAUTHORIZED:
                    return self._login_form(request, problem.detail, problem.status)
                here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"{self.base}/login?to={quote(here, safe='')}", 303, headers=SAFE)
            menu = [one for one in PAGES if one.in_menu and (caller.sees_all or not one.office)]
            given = dict(request.path_params)
            return self._made("page.html", request, page=page, caller=caller, menu=menu, given=given)

        return show

    async def login(self, request: Request) -> Response:
        """The form by which one logs in."""
        return self._made("login.html", request, problem="", name="", to=_here(request.query_params.get("to", "")))

    async def log_in(self, request: Request) -> Response:
        """What the form sends: a name and a password."""
        form = dict(parse_qsl((await read_body(request, FORM)).decode("utf-8", "replace")))
        name, to = form.get("name", ""), _here(form.get("to", ""))
        if is_foreign(request.headers):
            return self._login_form(request, "The form was another site's. Try again here.", HTTPStatus.FORBIDDEN)
        call = Call(self.door, NOBODY, request.headers, "", request.client.host if request.client else "")
        try:
            made = await open_session(call, SessionRequest(name=name, password=form.get("password", "")))
        except ProblemError as problem:
            words = "Name or password is wrong." if problem.status == HTTPStatus.UNAUTHORIZED else problem.detail
            return self._login_form(request, words, problem.status, name=name, to=to)
        return self._logged_in(request, made.secret, to)

    async def begin_login(self, request: Request) -> Response:
        """Send somebody to the provider."""
        if self.door.oidc is None:
            return self._login_form(request, "This gateway has no OpenID Connect provider.", HTTPStatus.NOT_FOUND)
        begun = BegunLogin(to=_here(request.query_params.get("to", "")))
        try:
            place = await way_to(self.door.oidc, begun, self._callback(request))
        except ProblemError as problem:
            return self._login_form(request, problem.detail, problem.status)
        answer = RedirectResponse(place, 303, headers=SAFE)
        answer.headers["set-cookie"] = begun.cookie(secure=request.url.scheme == "https")
        return answer

    async def come_back(self, request: Request) -> Response:
        """Who comes back from the provider has a session, if it says who they are."""
        if self.door.oidc is None:
            return self._login_form(request, "This gateway has no OpenID Connect provider.", HTTPStatus.NOT_FOUND)
        begun = BegunLogin.of_cookie(request.cookies.get(COOKIE, ""))
        query = dict(request.query_params)
        try:
            self.door.sources.take(network(request.client.host if request.client else ""), self.door.clock())
            caller = await who_came_back(self.door.oidc, begun, query, self._callback(request), self.door.clock())
            made = await begin_session(self.door, caller)
        except ProblemError as problem:
            return self._login_form(request, problem.detail, problem.status)
        answer = self._logged_in(request, made.secret, _here(begun.to if begun else ""))
        answer.headers.append("set-cookie", f"{COOKIE}=; Path=/; Max-Age=0")
        return answer

    def _callback(self, request: Request) -> str:
        return f"{request.url.scheme}://{request.url.netloc}{self.base}/callback"

    def _logged_in(self, request: Request, secret: str, to: str) -> Response:
        answer = RedirectResponse(to or f"{self.base}/", 303, headers=SAFE)
        secure = request.url.scheme == "https"
        answer.headers["set-cookie"] = set_session(secret, SESSION // SECOND, secure=secure)
        return answer

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        session = session_of(request.headers)
        form = dict(parse_qsl((await read_body(request, FORM)).decode("utf-8", "replace")))
        answer = RedirectResponse(f"{self.base}/login", 303, headers=SAFE)
        if session and form.get("word") == word_of(session):
            try:
                caller = await caller_of(self.door, request.headers, changes=False)
                await close_session(Call(self.door, caller, request.headers))
            except LeasekitError:
                pass  # it is over already
            answer.headers["set-cookie"] = set_session("", 0, secure=request.url.scheme == "https")
        return answer

    def _login_form(self, request: Request, problem: str, status: int, *, name: str = "", to: str = "") -> Response:
        return self._made("login.html", request, status, problem=problem, name=name, to=to)

    def _made(self, template: str, request: Request, status: int = HTTPStatus.OK, **values: Any) -> Response:
        session = session_of(request.headers)
        look = request.cookies.get("leasekit-look", "")
        text = self._templates.get_template(template).render(
            base=self.base, api=f"{self.base}{BASE}", static=f"{self.base}/static/{VERSION}",
            word=word_of(session) if session else "", look=look if look in ("light", "dark") else "",
            issuer="" if self.door.oidc is None else urlsplit(self.door.oidc.table.issuer).netloc, **values,
        )  # fmt: skip
        return Response(text, status_code=status, media_type="text/html", headers=SAFE)


def _here(to: str) -> str:
    """A path of this gateway, or nothing."""
    return to if HERE.fullmatch(to) else ""
