"""What is said when a request comes to nothing: problem details (RFC 9457), with the code of the core."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from leasekit.client.shapes import ProblemDetails
from leasekit.config.instants import dated
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import Code
from leasekit.core.schema import StoreError
from leasekit.gateway.actors import ActorAwayError, RefusedError
from leasekit.gateway.instants import told_reason

STATUS: Final[Mapping[str, HTTPStatus]] = {
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.UNKNOWN_TYPE: HTTPStatus.NOT_FOUND,
    Code.BAD_ARGUMENT: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.KEY_USED: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.SILENT: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Which status a refusal has that names a code; others are conflicts with what there is."""


class ProblemError(LeasekitError):
    """A request that comes to nothing, with what is told of it."""

    def __init__(
        self, status: HTTPStatus, detail: str = "", *, code: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail or status.phrase)
        self.status, self.detail, self.code, self.headers = status, detail, code, headers or {}

    def problem(self) -> ProblemDetails:
        """As it is told."""
        return details(self.status, self.detail, self.code)


def details(status: HTTPStatus, detail: str, code: str, **values: Any) -> ProblemDetails:
    """A problem as it is told."""
    return ProblemDetails(title=status.phrase, status=status, detail=detail, code=code, values=values)


def not_found(what: str, name: str) -> ProblemError:
    """There is no such thing, or none that the caller may see: these are told alike."""
    return ProblemError(
        HTTPStatus.NOT_FOUND, f"{what}: found {name!r:.80}, there is none that you may see", code="not_found"
    )


def of_error(error: LeasekitError) -> ProblemDetails:
    """What is told of an error of the way to an actor, or of what it refused."""
    if isinstance(error, ProblemError):
        return error.problem()
    if isinstance(error, ActorAwayError):
        return details(HTTPStatus.SERVICE_UNAVAILABLE, str(error), "away", actor=error.actor)
    if isinstance(error, StoreError):
        return details(HTTPStatus.SERVICE_UNAVAILABLE, f"nothing is done: {error}", "store")
    if isinstance(error, RefusedError):
        told = told_reason(str(error), dict(error.because or {}))
        told["values"].pop("detail", None)  # it says what the words say
        status = STATUS.get(told["code"], HTTPStatus.CONFLICT)
        return ProblemDetails(
            title=status.phrase, status=status, detail=told["reason"], code=told["code"], values=told["values"]
        )
    return details(HTTPStatus.UNPROCESSABLE_ENTITY, dated(str(error)), "bad_argument")
