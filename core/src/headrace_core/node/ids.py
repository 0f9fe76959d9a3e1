"""Cluster, directory, topic and incarnation ids: 16 random bytes, written as Kafka writes them (base64url, 22 letters).

Source: KIP-516 (topic ids), KIP-631 (cluster id), KIP-858 (directory ids).
"""

from __future__ import annotations

import base64
import binascii
import os

from ..errors import InvalidConfigError

ID_BYTES = 16


def random_id() -> bytes:
    """Return 16 random bytes whose text form does not begin with "-", which would look like an option on a command
    line."""
    while True:
        new = os.urandom(ID_BYTES)
        if not id_to_text(new).startswith("-"):
            return new


def id_to_text(raw: bytes) -> str:
    """Format an id as 22 characters of [A-Za-z0-9_-]."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def id_from_text(text: str) -> bytes:
    """Parse the text of ``id_to_text``; raises InvalidConfigError for any other text."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != ID_BYTES:
        raise InvalidConfigError(
            f"{text!r} is not an id: must be 22 characters of [A-Za-z0-9_-], such as {id_to_text(bytes(16))}"
        )
    return raw
