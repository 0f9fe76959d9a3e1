"""Frames and headers: ``[length: int32] [header] [body]`` in both directions.

Request header version 1 has type, version, correlation id and client id; version 2 (flexible requests) adds tagged
fields. The client id in a request header never has the compact format. Response header version 0 is the correlation id;
version 1 adds tagged fields. A response to ApiVersions always has version 0, because a client reads it before it knows
the broker (KIP-511).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .apis import VERSIONS, Api, is_flexible
from .primitives import Cursor, WireError, pack_int32

LENGTH_BYTES = 4
#: Maximum size in bytes of a request other than Produce: the largest request that a node accepts by gRPC.
REQUEST_BYTES_MAX = 8 * 1024 * 1024

_START = struct.Struct(">hhi")  #: Type, version and correlation id of a request.
_APIS = {int(api): api for api in Api}


class RequestHeader(NamedTuple):
    """``body``: the position of the request's body in the frame. ``is_supported``: whether the broker serves
    ``version``. A request with an unsupported version ends the connection, except for ApiVersions, whose answer names
    the supported versions."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    body: int
    is_supported: bool


def read_header(frame: bytes) -> RequestHeader:
    """Read the header of a request. ``frame`` does not include the four bytes of its length. Raises WireError for an
    unknown request type or a truncated header."""
    cursor = Cursor(frame)
    number, version, correlation_id = _START.unpack_from(frame, cursor.skip(_START.size))
    api = _APIS.get(number)
    if api is None:
        raise WireError(f"request type {number} is unknown")
    versions = VERSIONS[api]
    if not versions.low <= version <= versions.high:
        return RequestHeader(api, version, correlation_id, "", len(frame), False)
    client_id = cursor.string() or ""
    if version >= versions.flexible:
        if frame[cursor.position : cursor.position + 1] == b"\0":  # nearly every request has no tagged fields
            cursor.position += 1
        else:
            cursor.skip_tagged()
    return RequestHeader(api, version, correlation_id, client_id, cursor.position, True)


def response_start(api: Api, version: int, correlation_id: int) -> bytearray:
    """The beginning of a response's frame: four bytes for the length, then the header. Append the body, then call
    ``finish``."""
    out = bytearray(LENGTH_BYTES)
    out += pack_int32(correlation_id)
    if api is not Api.API_VERSIONS and is_flexible(api, version):
        out.append(0)
    return out


def finish(out: bytearray) -> bytearray:
    """Set the length field of the frame ``out``; returns ``out``."""
    out[:LENGTH_BYTES] = pack_int32(len(out) - LENGTH_BYTES)
    return out
