"""Why a call failed."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Mapping

import grpc

from .rpc.v1 import error_details_pb2

if TYPE_CHECKING:
    from .results import Scores

_DETAILS = "grpc-status-details-bin"


class RetroInferError(Exception):
    """A call failed.

    code: gRPC's status. reason: in UPPER_SNAKE_CASE, as generation.proto lists them at each RPC; "" where the
    server did not answer. metadata: the numbers of the message. retry_after: seconds after which the same call
    is worth another try; None: it is not.
    """

    def __init__(self, message: str, code: grpc.StatusCode, reason: str = "",
                 metadata: Mapping[str, str] | None = None, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {message}" if reason else message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


class InvalidRequest(RetroInferError):
    """The request is wrong, or larger than the server can ever take: no use in sending it again."""


class Unauthenticated(RetroInferError):
    """The API key is missing or wrong."""


class NotFound(RetroInferError):
    """There is nothing of this name."""


class Busy(RetroInferError):
    """The server has no room now (`retry_after`), or the client did not read."""


class Unavailable(RetroInferError):
    """The server does not answer, loads its model or shuts down."""


class DeadlineExceeded(RetroInferError):
    """The call's timeout has passed."""


class Cancelled(RetroInferError):
    """This side gave the call up."""


class Incomplete(RetroInferError):
    """The server has ended a scoring before everything was measured: at `time_limit`, or since someone aborted it, or as
    it shuts down. scores: what there is, whose last tokens are missing."""

    def __init__(self, message: str, scores: Scores) -> None:
        super().__init__(message, grpc.StatusCode.ABORTED)
        self.scores = scores


_Code = grpc.StatusCode
_CLASSES: dict[grpc.StatusCode, type[RetroInferError]] = {
    _Code.INVALID_ARGUMENT: InvalidRequest, _Code.OUT_OF_RANGE: InvalidRequest,
    _Code.FAILED_PRECONDITION: InvalidRequest, _Code.ALREADY_EXISTS: InvalidRequest,
    _Code.UNIMPLEMENTED: InvalidRequest, _Code.UNAUTHENTICATED: Unauthenticated,
    _Code.PERMISSION_DENIED: Unauthenticated, _Code.NOT_FOUND: NotFound, _Code.RESOURCE_EXHAUSTED: Busy,
    _Code.UNAVAILABLE: Unavailable, _Code.DEADLINE_EXCEEDED: DeadlineExceeded, _Code.CANCELLED: Cancelled,
}
# RESOURCE_EXHAUSTED, but for good.
_NEVER_FITS = ("CAPACITY_EXCEEDED", "REQUEST_TOO_LARGE", "METADATA_TOO_LARGE")


def _details(trailers: Iterable[tuple[str, Any]]) -> error_details_pb2.Status:
    status = error_details_pb2.Status()
    for key, value in trailers:
        if key == _DETAILS:
            try:
                status.ParseFromString(value)
            except Exception:  # of a proxy, perhaps: the code alone counts then
                return error_details_pb2.Status()
    return status


def from_rpc_error(error: Any) -> RetroInferError:
    """The exception for a failed call: a grpc.RpcError of either API."""
    reason, metadata, retry_after = "", {}, None
    for detail in _details(error.trailing_metadata() or ()).details:
        if detail.type_url.endswith(".ErrorInfo"):
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.type_url.endswith(".RetryInfo"):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry_after = delay.seconds + delay.nanos / 1e9
    code = error.code()
    kind = InvalidRequest if reason in _NEVER_FITS else _CLASSES.get(code, RetroInferError)
    return kind(error.details() or "the server said nothing", code, reason, metadata, retry_after)
