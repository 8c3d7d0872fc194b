"""The pages of a folder of emulated runs, served to whoever has their address, which nobody can guess."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasekit.client.runs import RunAsked
from leasekit.config.instants import parse_instant
from leasekit.core.errors import LeasekitError
from leasekit.gateway.callers import NOBODY
from leasekit.gateway.pages.frames import SAFE, PageFrames, WebPage
from leasekit.gateway.problems import ProblemError, of_error
from leasekit.gateway.routing import PICTURES
from leasekit.gateway.runs import OpenedFolder

RUNS: Final = WebPage("runs", "Runs", "/")
RUN: Final = WebPage("run", "Run", "/run")
LOOPBACK: Final = "127.0.0.1"

logger = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class RunPages:
    """The pages of a ``folder``, below the path ``base``."""

    folder: OpenedFolder
    base: str = attrs.field(factory=lambda: f"/{secrets.token_urlsafe(24)}")

    def app(self) -> Starlette:
        """The application that answers for them."""
        frames = PageFrames(self.base, f"{self.base}/api")

        def shows(page: WebPage) -> Callable[[Request], Awaitable[Response]]:
            async def show(request: Request) -> Response:
                given: dict[str, str] = {}
                return frames.made("run.html", request, page=page, caller=NOBODY, menu=[RUNS], given=given, word="")

            return show

        return Starlette(
            routes=[
                *(Route(f"{self.base}{page.path}", shows(page), methods=["GET"]) for page in (RUNS, RUN)),
                Route(f"{self.base}/api/runs", self._told(self._overview), methods=["GET"]),
                Route(f"{self.base}/api/calendar", self._told(self._calendar), methods=["GET"]),
                Route(f"{self.base}/api/moment", self._told(self._moment), methods=["GET"]),
                Route(f"{self.base}/pictures/{{name}}", self._picture, methods=["GET"]),
                frames.static(),
            ]
        )

    def _told(self, ask: Callable[[dict[str, str]], Struct]) -> Callable[[Request], Awaitable[Response]]:
        """What answers a question, in a thread of its own: a large run takes a while."""

        async def answer(request: Request) -> Response:
            try:
                found, status = await trio.to_thread.run_sync(ask, dict(request.query_params)), int(HTTPStatus.OK)
            except LeasekitError as error:
                found = of_error(error)
                status = found.status
            return Response(msgspec.json.encode(found), status, media_type="application/json", headers=SAFE)

        return answer

    def _overview(self, _: dict[str, str]) -> Struct:
        return self.folder.overview()

    def _calendar(self, query: dict[str, str]) -> Struct:
        run = query.pop("run", "")
        try:
            asked = msgspec.convert(query, RunAsked, strict=False)
        except msgspec.ValidationError as error:
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), code="bad_argument") from None
        return self.folder.calendar(run, asked)

    def _moment(self, query: dict[str, str]) -> Struct:
        try:
            at = parse_instant(query.get("at", ""))
        except ValueError as error:
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"at: {error}", code="bad_argument") from None
        return self.folder.moment(query.get("run", ""), at)

    async def _picture(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = await trio.to_thread.run_sync(self.folder.picture, name)
        if found is None:
            return Response("there is no such picture", status_code=HTTPStatus.NOT_FOUND, headers=SAFE)
        return Response(found, media_type=PICTURES[Path(name).suffix], headers=SAFE)


def serve_runs(folder: OpenedFolder, port: int, tell: Callable[[str], object]) -> None:
    """Serve the pages of a folder on this machine alone, until Ctrl-C; ``tell`` hears their address. With the port 0
    it is any that is free. Raises ``LeasekitError`` where it can't listen.
    """
    pages, config = RunPages(folder), Config()
    try:
        listening = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise LeasekitError(f"{LOOPBACK}:{port}: can't listen there: {os.strerror(error.errno or 0)}") from None
    address = f"http://{LOOPBACK}:{listening.getsockname()[1]}{pages.base}/"
    config.bind = [f"fd://{listening.detach()}"]
    config.include_server_header, config.accesslog, config.errorlog = False, None, logger
    app: Any = pages.app()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: serve(app, config, task_status=task_status))
            tell(address)

    try:
        trio.run(run)
    except* KeyboardInterrupt:
        pass
