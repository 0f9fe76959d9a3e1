"""Client quotas of a cluster (KIP-546)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass


class QuotaName(enum.Enum):
    """Special names of quota entities, which are not strings. ``QuotaEntity(user=QuotaName.DEFAULT)`` is for all users
    without a quota of their own. In a filter, ``ANY`` matches every name and the default."""

    DEFAULT = "<default>"
    ANY = "<any>"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """The entity to which a quota applies: a user, a client id, both, or an IP address. A field (``user``,
    ``client_id`` or ``ip``) is None if the entity does not have this part. ``user`` is the principal's name without its
    type: "alice" for User:alice."""

    user: str | QuotaName | None = None
    client_id: str | QuotaName | None = None
    ip: str | QuotaName | None = None

    def parts(self) -> Iterator[tuple[str, str | QuotaName]]:
        """Iterate over the parts as (Kafka's type, name)."""
        for kind, name in (("user", self.user), ("client-id", self.client_id), ("ip", self.ip)):
            if name is not None:
                yield kind, name

    def __str__(self) -> str:
        return ", ".join(f"{kind}={name if isinstance(name, str) else name.value}" for kind, name in self.parts())
