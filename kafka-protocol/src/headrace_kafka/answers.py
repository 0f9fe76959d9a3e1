"""Answers to requests that failed, and the size of answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

from .call import Call
from .errors import number
from .wire.apis import VERSIONS, Api
from .wire.frames import finish, response_start
from .wire.schema import has_response_field, response_body


def login_error(fields: Mapping[str, Any]) -> HeadraceError:
    """The error in the answer to a failed SaslHandshake or SaslAuthenticate."""
    if fields.get("error_code") == UnsupportedSaslMechanismError.number:
        return UnsupportedSaslMechanismError("the listener does not offer the client's SASL mechanism")
    return SaslAuthenticationFailedError(str(fields.get("error_message") or ""))


def count_items(fields: Mapping[str, Any]) -> int:
    """Estimate the number of items in an answer: the items of its lists, and of the lists inside the first 20 items of
    each list."""
    count = 0
    for value in fields.values():
        if isinstance(value, list):
            count += len(value)
            for item in value[:20]:
                if isinstance(item, dict):
                    count += sum(len(inner) for inner in item.values() if isinstance(inner, list))
    return count


def failed(call: Call, error: HeadraceError) -> dict[str, Any]:
    """The answer to a request whose handler raised ``error``. Raises ``error`` again if answers of the request's type
    have no top-level error code."""
    if not has_response_field(call.api, call.version, "error_code"):
        raise error
    fields: dict[str, Any] = {"error_code": number(error)}
    if has_response_field(call.api, call.version, "error_message"):
        fields["error_message"] = str(error)
    return fields


def unknown_version(correlation_id: int) -> bytearray:
    """The answer to an ApiVersions request of an unknown version. The answer has version 0, and names the versions of
    ApiVersions that the broker serves (KIP-511)."""
    api = Api.API_VERSIONS
    row = {"api_key": int(api), "min_version": VERSIONS[api].low, "max_version": VERSIONS[api].high}
    out = response_start(api, 0, correlation_id)
    response_body(api, 0).write({"error_code": UnsupportedVersionError.number, "api_keys": [row]}, out)
    return finish(out)
