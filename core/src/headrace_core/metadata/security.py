"""The part of the metadata image that concerns security: access control entries, credentials, quotas and delegation
tokens.

This part of the image is one frozen value, ``image.security``. Whenever a table of ``image.security`` changes,
``image.security`` becomes another object. A reader may cache values that it derives from ``image.security``, until the
object is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .records import (
    AclRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAclRecord,
    RemoveDelegationTokenRecord,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
)
from .sorted_map import SortedMap

#: A quota's entity: pairs of a type (user, client-id, ip) and a name, sorted by type. A name of None means the type's
#: default.
QuotaEntity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class SecurityImage:
    """``acls`` by id; ``scram`` by user and mechanism; ``quotas``: values by entity and key; ``tokens`` by token id."""

    acls: Mapping[bytes, AclRecord] = field(default_factory=SortedMap)
    scram: Mapping[tuple[str, int], ScramCredentialRecord] = field(default_factory=SortedMap)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=SortedMap)

    def __bool__(self) -> bool:
        """Whether the image has any entry."""
        return bool(self.acls or self.scram or self.quotas or self.tokens)


EMPTY_SECURITY = SecurityImage()


class SecurityBuilder:
    """Changes of a SecurityImage, for ImageBuilder. Used once."""

    def __init__(self, base: SecurityImage) -> None:
        self._acls = SortedMap.of(base.acls).edit()
        self._scram = SortedMap.of(base.scram).edit()
        self._quotas = dict(base.quotas)
        self._tokens = SortedMap.of(base.tokens).edit()

    def replay(self, record: Any) -> bool:
        """Apply a record; returns False when the record removes an entry that does not exist."""
        return _REPLAY[type(record)](self, record)

    def finish(self) -> SecurityImage:
        return SecurityImage(
            acls=self._acls.finish(), scram=self._scram.finish(), quotas=self._quotas, tokens=self._tokens.finish()
        )

    def _acl(self, record: AclRecord) -> bool:
        self._acls[record.acl_id] = record
        return True

    def _remove_acl(self, record: RemoveAclRecord) -> bool:
        return _removed(self._acls, record.acl_id)

    def _credential(self, record: ScramCredentialRecord) -> bool:
        self._scram[record.user, record.mechanism] = record
        return True

    def _remove_credential(self, record: RemoveScramCredentialRecord) -> bool:
        return _removed(self._scram, (record.user, record.mechanism))

    def _quota(self, record: ClientQuotaRecord) -> bool:
        values = dict(self._quotas.get(record.entity, {}))
        if record.value is not None:
            values[record.key] = record.value
        elif values.pop(record.key, None) is None:
            return False
        if values:
            self._quotas[record.entity] = values
        else:
            del self._quotas[record.entity]
        return True

    def _token(self, record: DelegationTokenRecord) -> bool:
        self._tokens[record.token_id] = record
        return True

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> bool:
        return _removed(self._tokens, record.token_id)


def _removed(table: Any, key: Any) -> bool:
    if key not in table:
        return False
    del table[key]
    return True


_REPLAY: dict[type, Callable[[SecurityBuilder, Any], bool]] = {
    AclRecord: SecurityBuilder._acl,
    RemoveAclRecord: SecurityBuilder._remove_acl,
    ScramCredentialRecord: SecurityBuilder._credential,
    RemoveScramCredentialRecord: SecurityBuilder._remove_credential,
    ClientQuotaRecord: SecurityBuilder._quota,
    DelegationTokenRecord: SecurityBuilder._token,
    RemoveDelegationTokenRecord: SecurityBuilder._remove_token,
}

SECURITY_RECORDS = tuple(_REPLAY)  #: The kinds of records that change a SecurityImage.


def security_records(security: SecurityImage) -> Iterator[Any]:
    """Iterate over the records that build the image from an empty image. Equal images give equal records."""
    yield from security.acls.values()
    yield from security.scram.values()
    for entity in sorted(security.quotas, key=_entity_order):
        values = security.quotas[entity]
        for key in sorted(values):
            yield ClientQuotaRecord(entity, key, values[key])
    yield from security.tokens.values()


def _entity_order(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    return tuple((kind, name is not None, name or "") for kind, name in entity)
