"""Which quota applies to a client, in the order of Kafka's ClientQuotaManager. The first entity of this list that has
the quota's key applies:

    1  user=alice,     client-id=app        5  user=<default>, client-id=<default>
    2  user=alice,     client-id=<default>  6  user=<default>
    3  user=alice                           7  client-id=app
    4  user=<default>, client-id=app        8  client-id=<default>
                                            9  quota.producer.default, quota.consumer.default

The entity's number also shows which clients share the quota: all clients of the user (3, 6), all users of the client id
(7 to 9), or only this user with this client id (1, 2, 4, 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..metadata.security import QuotaEntity
from .entities import CLIENT_ID, CONNECTION_CREATION_RATE, IP, USER

_NOTHING: Mapping[str, float] = {}


class Applicable(NamedTuple):
    """A quota that applies to a client: its ``rate`` in units per second (percent for request_percentage), and the user
    and client id that share it; None: all."""

    rate: float
    user: str | None
    client_id: str | None


class QuotaTable:
    """The quotas of an image. ``defaults``: values by key for clients without any quota of the key."""

    def __init__(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float]] = {},
        defaults: Mapping[str, float] = {},
    ) -> None:
        self._quotas = quotas
        self._defaults = dict(defaults)
        #: The keys with at least one quota: a client needs no limit for other keys.
        self.keys = frozenset(defaults).union(*quotas.values()) if quotas else frozenset(defaults)

    def find(self, key: str, user: str, client_id: str) -> Applicable | None:
        """Return the quota ``key`` that applies to the client; None: the client has no limit."""
        if key not in self.keys:
            return None
        get = self._quotas.get
        for named_user in (user, None):
            for entity, shared_with in (
                (((CLIENT_ID, client_id), (USER, named_user)), client_id),
                (((CLIENT_ID, None), (USER, named_user)), client_id),
                (((USER, named_user),), None),
            ):
                rate = get(entity, _NOTHING).get(key)
                if rate is not None:
                    return Applicable(rate, user, shared_with)
        for named in (client_id, None):
            rate = get(((CLIENT_ID, named),), _NOTHING).get(key)
            if rate is not None:
                return Applicable(rate, None, client_id)
        rate = self._defaults.get(key)
        return None if rate is None else Applicable(rate, None, client_id)

    def connections(self, ip: str) -> float | None:
        """Return the connections per second that an address may open (KIP-612); None: no limit."""
        for name in (ip, None):
            rate = self._quotas.get(((IP, name),), _NOTHING).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                return rate
        return None
