"""Client quotas in the metadata: changes and descriptions (KIP-546)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace_core.errors import HeadraceError, InvalidRequestError, PolicyViolationError, UnsupportedVersionError
from headrace_core.metadata import MetadataImage, MetadataRecord
from headrace_core.metadata.records import ClientQuotaRecord
from headrace_core.metadata.security import QuotaEntity
from headrace_core.quotas import FilterPart, checked_entity, checked_filter, checked_value, matches, shown_entity
from headrace_core.quotas.entities import check_key

from .decision import Decision, View
from .requests import AlterClientQuotas, QuotaAlteration, QuotaResult

#: The first level of metadata.version at which the metadata log may have quotas.
LEVEL = 3
#: Maximum number of entities with quotas: every node keeps all of them in memory.
ENTITIES_MAX = 100_000


def alter(view: View, request: AlterClientQuotas) -> Decision:
    """Returns one QuotaResult for each alteration; an alteration is made completely or not at all."""
    image = view.image
    if image.metadata_version < LEVEL:
        raise UnsupportedVersionError(
            f"quotas need metadata.version {LEVEL}, but the cluster has {image.metadata_version}; "
            "upgrade all nodes, then run headrace features upgrade"
        )
    records: list[MetadataRecord] = []
    results = []
    times = Counter(tuple(sorted(dict(each.parts).items(), key=str)) for each in request.alterations)
    entities = set(image.security.quotas)
    for alteration in request.alterations:
        try:
            if times[tuple(sorted(dict(alteration.parts).items(), key=str))] > 1:
                raise InvalidRequestError(f"{shown_entity(alteration.parts)} is altered twice in the request")
            entity, made = _altered(image, alteration)
            if len(records) + len(made) > view.settings.metadata_max_records_per_request:
                raise PolicyViolationError("the request alters too many quotas; split it into several requests")
            if any(each.value is not None for each in made):
                entities.add(entity)
            if len(entities) > ENTITIES_MAX:
                raise PolicyViolationError(
                    f"a cluster can have quotas of at most {ENTITIES_MAX} entities; remove quotas first"
                )
        except HeadraceError as error:
            results.append(QuotaResult(alteration.parts, error))
        else:
            records += made
            results.append(QuotaResult(entity))
    return Decision(() if request.validate_only else tuple(records), tuple(results))


def _altered(image: MetadataImage, alteration: QuotaAlteration) -> tuple[QuotaEntity, list[ClientQuotaRecord]]:
    entity = checked_entity(alteration.parts)
    own = image.security.quotas.get(entity, {})
    records = []
    seen = set()
    for key, value in alteration.operations:
        if key in seen:
            raise InvalidRequestError(f"{shown_entity(entity)}: {key[:100]} is altered twice in the request")
        seen.add(key)
        if value is None:
            check_key(entity, key)
            if key in own:
                records.append(ClientQuotaRecord(entity, key))
            continue
        wanted = checked_value(entity, key, value)
        if own.get(key) != wanted:
            records.append(ClientQuotaRecord(entity, key, wanted))
    return entity, records


def described(
    image: MetadataImage, parts: Sequence[FilterPart], *, strict: bool
) -> list[tuple[QuotaEntity, dict[str, float]]]:
    """Return the quotas that a filter selects, in a fixed order. Raises InvalidRequestError for an invalid filter."""
    wanted = checked_filter(parts)
    return [
        (entity, dict(values))
        for entity, values in sorted(image.security.quotas.items(), key=str)
        if matches(entity, wanted, strict=strict)
    ]
