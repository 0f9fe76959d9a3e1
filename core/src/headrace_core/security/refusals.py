"""The error for a caller without the right that its request needs."""

from __future__ import annotations

from ..errors import (
    ClusterAuthorizationFailedError,
    DelegationTokenAuthorizationFailedError,
    GroupAuthorizationFailedError,
    HeadraceError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from .acl_types import Operation, ResourceType

_ERRORS: dict[int, type[HeadraceError]] = {
    ResourceType.TOPIC: TopicAuthorizationFailedError,
    ResourceType.GROUP: GroupAuthorizationFailedError,
    ResourceType.CLUSTER: ClusterAuthorizationFailedError,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailedError,
    ResourceType.DELEGATION_TOKEN: DelegationTokenAuthorizationFailedError,
    ResourceType.USER: DelegationTokenAuthorizationFailedError,
}
_SHOWN_CHARS_MAX = 249


def refusal(operation: Operation, resource_type: int, name: str, principal: object) -> HeadraceError:
    """The error for a caller that is not authorized to do ``operation`` on a resource. The text does not show whether
    the resource exists."""
    resource = ResourceType(resource_type)
    if resource is ResourceType.CLUSTER:
        what, flag = "the cluster", "--cluster"
    else:
        shown = name if len(name) <= _SHOWN_CHARS_MAX else name[:_SHOWN_CHARS_MAX] + "…"
        kind = resource.name.lower().replace("_", " ")
        what, flag = f"{kind} {shown!r}", f"--{resource.name.lower().replace('_', '-')} {shown}"
    word = Operation(operation).name
    return _ERRORS[resource](
        f"{principal} is not authorized to {word} {what}; an administrator can allow it: headrace acls create "
        f"--allow-principal {principal} --operation {word} {flag}"
    )
