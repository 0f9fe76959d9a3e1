"""Principals: who makes a call, in Kafka's form ``User:alice``."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidRequestError

USER = "User"  #: The type of the principals of clients, and the only type in ACLs. (Nodes have the type Node.)
PRINCIPAL_CHARS_MAX = 1_024  #: Maximum length of a principal's text; a distinguished name of a certificate is long.


@dataclass(frozen=True, slots=True)
class Principal:
    """``kind`` is User, or Node for a node of the cluster; ``name`` may be any text, such as ``alice`` or
    ``CN=alice,O=Example``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")  #: The principal of callers that are not authenticated.


def parse_principal(text: str) -> Principal:
    """Parse ``User:alice``. Raises InvalidRequestError if the text has no type or no name, or is too long."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name or len(text) > PRINCIPAL_CHARS_MAX:
        raise InvalidRequestError(f"principal {text[:60]!r}: write TYPE:NAME, such as User:alice")
    return Principal(kind, name)
