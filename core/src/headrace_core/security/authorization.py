"""A node's authorizer: from its configuration, and from the ACLs of its metadata image.

When a check finds changed ACLs in the image, it makes a new authorizer. After a change of a few entries, the new
authorizer shares the unchanged parts with the old one. Making an authorizer of all entries takes about 6 µs an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from ..errors import InvalidConfigError, InvalidRequestError, ServerBusyError
from ..metadata.records import AclRecord
from ..metadata.security import SecurityImage
from ..metadata.sorted_map import SortedMap
from .access import NO_NAMES, Authorization, Decider, Observer
from .authorizer import Authorizer
from .caller import Caller
from .principal import parse_principal

#: If the changed entries times this number exceed all entries, the authorizer is built again from all entries.
_ALL_AGAIN_SHARE = 4


def parse_super_users(text: str | None) -> frozenset[str]:
    """Parse ``User:admin;User:CN=ops,O=Example``. Raises InvalidConfigError, which names the item."""
    found = [item.strip() for item in (text or "").split(";")]
    try:
        return frozenset(str(parse_principal(item)) for item in found if item)
    except InvalidRequestError as error:
        raise InvalidConfigError(f"super.users: {error.message}; separate principals by semicolons") from None


class Unready:
    """The authorizer of a node that does not know the ACLs yet: only super users may do anything, and other callers get
    SERVER_BUSY, which clients retry. (Clients do not retry a refusal.)"""

    names_hosts = False

    def __init__(self, super_users: frozenset[str]) -> None:
        self._super_users = super_users

    def granted(self, caller: Caller, operation: int, resource_type: int) -> Set[str]:
        """Return no names, so that callers ask ``allows`` each time."""
        return NO_NAMES

    def allows(self, caller: Caller, operation: int, resource_type: int, name: str) -> bool:
        """Raises ServerBusyError."""
        return self.allows_any(caller, operation, resource_type)

    def allows_any(self, caller: Caller, operation: int, resource_type: int) -> bool:
        """Raises ServerBusyError."""
        if str(caller.principal) not in self._super_users:
            raise ServerBusyError("this node has just started and does not know the ACLs yet; retry")
        return True


class NodeAuthorization(Authorization):
    """The authorization by the ACLs of the node's security image. ``image`` returns the present security image, or None
    while the node has no image yet."""

    __slots__ = ("_acls", "_allow_everyone", "_built", "_image", "_super_users", "_unready")

    def __init__(
        self,
        image: Callable[[], SecurityImage | None],
        super_users: frozenset[str],
        *,
        allow_everyone: bool,
        observe: Observer | None = None,
        sample: int = 0,
    ) -> None:
        self._image = image
        self._super_users = super_users
        self._allow_everyone = allow_everyone
        self._acls: Mapping[bytes, Any] | None = None
        self._built: Authorizer | None = None
        self._unready = Unready(super_users)
        super().__init__(None, observe, sample)

    @property
    def authorizer(self) -> Decider:
        """The authorizer for the present ACLs: the same object until the ACLs change."""
        image = self._image()
        if image is None:
            return self._unready
        acls = image.acls
        if acls is not self._acls or self._built is None:
            self._built = self._made(acls)
            self._acls = acls
        return self._built

    @authorizer.setter
    def authorizer(self, _: Decider | None) -> None:
        self._built, self._acls = None, None

    @property
    def is_limiting(self) -> bool:
        return True

    def _made(self, acls: Mapping[bytes, AclRecord]) -> Authorizer:
        before = self._acls
        if self._built is not None and isinstance(before, SortedMap) and isinstance(acls, SortedMap):
            differing = list(before.differing(acls))
            if len(differing) * _ALL_AGAIN_SHARE <= len(acls):
                removed = [before[key] for key in differing if key in before]
                return self._built.changed(removed, [acls[key] for key in differing if key in acls])
        return Authorizer(acls.values(), self._super_users, allow_everyone=self._allow_everyone)


def authorization_of(
    values: Mapping[str, Any],
    image: Callable[[], SecurityImage | None],
    observe: Observer | None = None,
    sample: int = 0,
) -> Authorization:
    """The authorization of a node with these configuration values. Without authorizer.class.name there is no
    authorizer, and every caller may do everything. Raises InvalidConfigError for super.users that name no
    principals."""
    if not values.get("authorizer.class.name"):
        return Authorization()
    return NodeAuthorization(
        image,
        parse_super_users(values.get("super.users")),
        allow_everyone=bool(values.get("allow.everyone.if.no.acl.found")),
        observe=observe,
        sample=sample,
    )
