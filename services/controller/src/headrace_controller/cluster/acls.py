"""Access control entries in the metadata: creation, removal, description."""

from __future__ import annotations

import hashlib

from headrace_core.errors import (
    HeadraceError,
    PolicyViolationError,
    SecurityDisabledError,
    UnsupportedVersionError,
)
from headrace_core.metadata import MetadataImage, MetadataRecord
from headrace_core.metadata.records import AclRecord, RemoveAclRecord
from headrace_core.security.acl import AclFilter, check_entry
from headrace_core.security.acl_types import ACLS_MAX

from .decision import Decision, View
from .requests import AclResult, CreateAcls, DeleteAcls, DeleteAclsResult

#: The first level of metadata.version at which the metadata log may have access control entries.
LEVEL = 3


def acl_id(entry: AclRecord) -> bytes:
    """The id of an entry (16 bytes). The id is computed from the entry's content, so an entry exists at most once."""
    content = "\0".join(
        str(part)
        for part in (
            entry.resource_type,
            entry.resource_name,
            entry.pattern_type,
            entry.principal,
            entry.host,
            entry.operation,
            entry.permission,
        )
    )
    return hashlib.sha256(content.encode()).digest()[:16]


def create(view: View, request: CreateAcls) -> Decision:
    """Returns one AclResult for each entry. An entry that already exists is not an error."""
    image = view.image
    _check_level(image)
    records: dict[bytes, MetadataRecord] = {}
    results = []
    count = len(image.security.acls)
    for given in request.entries:
        try:
            checked = check_entry(given)
            entry = AclRecord(acl_id(checked), *_content(checked))
            if entry.acl_id in image.security.acls or entry.acl_id in records:
                results.append(AclResult())
                continue
            if count + len(records) >= ACLS_MAX:
                raise PolicyViolationError(
                    f"a cluster can have at most {ACLS_MAX} access control entries; remove entries first"
                )
            if len(records) >= view.settings.metadata_max_records_per_request:
                raise PolicyViolationError(
                    "the request creates too many access control entries; split it into several requests"
                )
        except HeadraceError as error:
            results.append(AclResult(error))
            continue
        records[entry.acl_id] = entry
        results.append(AclResult())
    return Decision(tuple(records.values()), tuple(results))


def _content(entry: AclRecord) -> tuple[int, str, int, str, str, int, int]:
    return (
        entry.resource_type,
        entry.resource_name,
        entry.pattern_type,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission,
    )


def delete(view: View, request: DeleteAcls) -> Decision:
    """Returns one DeleteAclsResult for each filter, with the entries that the filter matches."""
    image = view.image
    _check_level(image)
    removed: dict[bytes, MetadataRecord] = {}
    results = []
    for wanted in request.filters:
        try:
            found = described(image, wanted)
            new = [each for each in found if each.acl_id not in removed]
            if len(removed) + len(new) > view.settings.metadata_max_records_per_request:
                raise PolicyViolationError("the request removes too many access control entries; use narrower filters")
        except HeadraceError as error:
            results.append(DeleteAclsResult((), error))
            continue
        removed.update({each.acl_id: RemoveAclRecord(each.acl_id) for each in new})
        results.append(DeleteAclsResult(tuple(found)))
    return Decision(tuple(removed.values()), tuple(results))


def described(image: MetadataImage, wanted: AclFilter) -> list[AclRecord]:
    """Return the entries that a filter matches. Raises InvalidRequestError for an invalid filter."""
    wanted.check()
    return [entry for entry in image.security.acls.values() if wanted.matches(entry)]


def _check_level(image: MetadataImage) -> None:
    if image.metadata_version < LEVEL:
        raise UnsupportedVersionError(
            f"access control entries need metadata.version {LEVEL}, but the cluster has {image.metadata_version}; "
            "upgrade all nodes, then run headrace features upgrade"
        )


def check_enabled(has_authorizer: bool) -> None:
    """Raise SecurityDisabledError if the cluster has no authorizer, as Kafka does."""
    if not has_authorizer:
        raise SecurityDisabledError(
            "the cluster has no authorizer, so access control entries would have no effect; set "
            "authorizer.class.name=StandardAuthorizer on every node"
        )
