"""The paths of the pages: their frames, what they load, and how one logs in and out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import attrs
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from leasekit.client.shapes import SessionRequest
from leasekit.core.errors import LeasekitError
from leasekit.core.time import SECOND
from leasekit.gateway.accounts import SESSION, begin_session, close_session, open_session
from leasekit.gateway.callers import NOBODY
from leasekit.gateway.cookies import is_foreign, session_of, set_session, word_of
from leasekit.gateway.incoming import caller_of, read_body, source_of
from leasekit.gateway.pages.frames import SAFE, PageFrames, WebPage
from leasekit.gateway.pages.openid import COOKIE, BegunLogin, way_to, who_came_back
from leasekit.gateway.problems import ProblemError
from leasekit.gateway.rates import network
from leasekit.gateway.routing import BASE, Call

if TYPE_CHECKING:
    from leasekit.gateway.door import GatewayDoor

FORM: Final = "application/x-www-form-urlencoded"
HERE: Final = re.compile(r"/(?![/\\])[\x21-\x7e]{0,1900}")
"""Where somebody may be sent after the login: a path of this gateway."""


PAGES: Final = (
    WebPage("calendar", "Calendar", "/calendar"),
    WebPage("leases", "Leases", "/leases"),
    WebPage("lease", "Lease", "/leases/{lease}"),
    WebPage("request", "Request", "/request"),
    WebPage("topology", "Topologies", "/topology"),
    WebPage("waits", "Waiting list", "/waits"),
    WebPage("approvals", "Approvals", "/approvals"),
    WebPage("sites", "Sites", "/sites", office=True),
    WebPage("claims", "Claims", "/claims", office=True),
    WebPage("usage", "Usage", "/usage"),
    WebPage("audit", "Audit", "/audit"),
    WebPage("admin", "Admin", "/admin"),
)
"""All pages, in the order of the menu."""


def page_routes(door: GatewayDoor, base: str) -> list[Route]:
    """The routes of the pages of a ``door``, whose paths begin with ``base``."""
    pages = _Pages(door, base)
    made = [Route(f"{base}{one.path}", pages.shows(one), methods=["GET"]) for one in PAGES]
    return [
        *made,
        *(Route(path, pages.home, methods=["GET"]) for path in {base, f"{base}/"} - {""}),
        Route(f"{base}/login", pages.login, methods=["GET"]),
        Route(f"{base}/login", pages.log_in, methods=["POST"]),
        Route(f"{base}/login/openid", pages.begin_login, methods=["GET"]),
        Route(f"{base}/callback", pages.come_back, methods=["GET"]),
        Route(f"{base}/logout", pages.log_out, methods=["POST"]),
        pages.frames.static(),
    ]


@attrs.define(eq=False)
class _Pages:
    """The pages of a gateway's ``door``."""

    door: GatewayDoor
    base: str
    frames: PageFrames = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.frames = PageFrames(self.base, f"{self.base}{BASE}")

    async def home(self, request: Request) -> Response:
        """The calendar is what one comes for."""
        return RedirectResponse(f"{self.base}{PAGES[0].path}", headers=SAFE)

    def shows(self, page: WebPage) -> Callable[[Request], Awaitable[Response]]:
        """What answers the path of a page: its frame, or the way to the login."""

        async def show(request: Request) -> Response:
            try:
                caller = await caller_of(self.door, request.headers, source_of(request), changes=False)
            except ProblemError as problem:
                if problem.status != HTTPStatus.UNAUTHORIZED:
                    return self._login_form(request, problem.detail, problem.status)
                here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"{self.base}/login?to={quote(here, safe='')}", 303, headers=SAFE)
            menu = [one for one in PAGES if one.in_menu and (caller.sees_all or not one.office)]
            shown: dict[str, Any] = {"page": page, "caller": caller, "menu": menu, "heard": self.door.hub.count}
            return self._made("page.html", request, given=dict(request.path_params), **shown)

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
                caller = await caller_of(self.door, request.headers, source_of(request), changes=False)
                await close_session(Call(self.door, caller, request.headers))
            except LeasekitError:
                pass  # it is over already
            answer.headers["set-cookie"] = set_session("", 0, secure=request.url.scheme == "https")
        return answer

    def _login_form(self, request: Request, problem: str, status: int, *, name: str = "", to: str = "") -> Response:
        return self._made("login.html", request, status, problem=problem, name=name, to=to)

    def _made(self, template: str, request: Request, status: int = HTTPStatus.OK, **values: Any) -> Response:
        session = session_of(request.headers)
        return self.frames.made(
            template, request, status, word=word_of(session) if session else "",
            issuer="" if self.door.oidc is None else urlsplit(self.door.oidc.table.issuer).netloc, **values,
        )  # fmt: skip


def _here(to: str) -> str:
    """A path of this gateway, or nothing."""
    return to if HERE.fullmatch(to) else ""
