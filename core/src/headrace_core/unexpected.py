"""Unexpected exceptions: a request id links the log line, the span and the error that the client gets.

The id is made when a request fails; requests that succeed, or are refused for a known reason, have no id.

    except Exception as error:
        logger.exception("the fetch of %s failed", partition, extra=log_fields(error))
        return answer_to(error, f"the fetch of {partition}")
"""

from __future__ import annotations

import secrets

from .errors import UnknownServerError
from .tracing.context import TraceContext

#: Attributes of a ``logging.LogRecord``. The formatters of node/logs.py write these attributes.
REQUEST_ID, TRACE_ID = "request_id", "trace_id"

_ATTRIBUTE = "_headrace_request_id"


def request_id_of(error: BaseException) -> str:
    """The id of the request that failed with ``error``: 16 hexadecimal digits, the same at every call."""
    found: str | None = getattr(error, _ATTRIBUTE, None)
    if found is None:
        found = secrets.token_hex(8)
        setattr(error, _ATTRIBUTE, found)
    return found


def log_fields(error: BaseException, context: TraceContext | None = None) -> dict[str, str]:
    """The argument ``extra`` of the logging call for the line about ``error``. ``context``: the trace context of the
    request, if the request is traced."""
    fields = {REQUEST_ID: request_id_of(error)}
    if context is not None:
        fields[TRACE_ID] = f"{context.trace_id:032x}"
    return fields


def answer_to(error: BaseException, what: str) -> UnknownServerError:
    """The error for the client whose request failed with ``error``. ``what``: the request, or the topic or other object
    that it concerns."""
    return UnknownServerError(f"{what}: {type(error).__name__}: {error} (request id {request_id_of(error)})")
