"""The permissions of the caller of the current call.

The gate of a listener makes an ``Access`` for each call and sets it for the call's task, as it sets the caller.
Handlers that check single items of a request ask ``current_access()``. Streams ask at every request: an Access reads
the node's present authorizer, so a changed ACL applies to the next request of an open stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextvars import ContextVar
from typing import Protocol

from .acl_types import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType
from .caller import NO_CALLER, Caller
from .refusals import refusal

#: KIP-430: the value of authorized operations if the request does not ask for them.
NOT_ASKED = -(2**31)
NO_NAMES: frozenset[str] = frozenset()


class Decider(Protocol):
    """The part of authorizer.Authorizer that ``Access`` uses."""

    @property
    def names_hosts(self) -> bool:
        """Whether a decision can depend on the caller's host."""
        ...

    def granted(self, caller: Caller, operation: int, resource_type: int) -> Set[str]:
        """Names of resources on which earlier calls of ``allows`` have allowed the operation; the set may lack further
        allowed names."""
        ...

    def allows(self, caller: Caller, operation: int, resource_type: int, name: str) -> bool: ...

    def allows_any(self, caller: Caller, operation: int, resource_type: int) -> bool: ...


#: Callback for decisions: caller, operation, resource type, name (None: any resource), whether it is allowed, method.
Observer = Callable[[Caller, Operation, ResourceType, str | None, bool, str], None]


class Authorization:
    """A node's authorizer, which changes with the ACLs. ``authorizer`` None: every caller may do everything.
    ``observe`` gets all refusals, and every ``sample``-th permission (0: no permissions)."""

    __slots__ = ("_allowed", "authorizer", "observe", "sample")

    def __init__(self, authorizer: Decider | None = None, observe: Observer | None = None, sample: int = 0) -> None:
        self.authorizer = authorizer
        self.observe = observe
        #: The observer gets every ``sample``-th permission, and with 0 no permission; it gets every refusal.
        self.sample = sample if observe is not None else 0
        self._allowed = 0

    def note(
        self, caller: Caller, operation: int, resource_type: int, name: str | None, is_allowed: bool, method: str
    ) -> None:
        """Report a decision to the observer."""
        if is_allowed:
            if not self.sample:
                return
            self._allowed += 1
            if self._allowed % self.sample:
                return
        if self.observe is not None:
            self.observe(caller, Operation(operation), ResourceType(resource_type), name, is_allowed, method)


_UNLIMITED = Authorization()


class Access:
    """The permissions of the caller of one call. ``method``: "Service/Method", for the audit log."""

    __slots__ = ("_reporting", "authorization", "caller", "method")

    def __init__(
        self,
        caller: Caller,
        authorization: Authorization | None,
        method: str = "",
        *,
        reporting: Authorization | None = None,
    ) -> None:
        """``authorization`` None: the caller may do everything, such as another node. ``reporting``: reports the
        refusals of a node (``note_refusal``)."""
        self.caller = caller
        #: Its ``authorizer`` stands for the present ACLs: after a change of the ACLs it is another object.
        self.authorization = authorization or _UNLIMITED
        self._reporting = reporting
        self.method = method

    @property
    def is_limited(self) -> bool:
        """Whether the call can be refused; if not, handlers may skip their checks."""
        return self.authorization.authorizer is not None

    def granted(self, operation: int, resource_type: int) -> Set[str] | None:
        """Names of resources on which the caller may do ``operation``; None: on all. The set is a shortcut for requests
        with many names. The set may lack allowed names: for a name that is not in the set, call ``allows`` or
        ``require``, which also audit. Do not keep the set: ask for it in each request."""
        authorization = self.authorization
        if (authorizer := authorization.authorizer) is None:
            return None
        return NO_NAMES if authorization.sample else authorizer.granted(self.caller, operation, resource_type)

    def allows(self, operation: int, resource_type: int, name: str = CLUSTER_NAME) -> bool:
        """Whether the caller may do ``operation`` on the resource. Refusals, and a sample of the permissions, are
        audited."""
        authorization = self.authorization
        if (authorizer := authorization.authorizer) is None:
            return True
        is_allowed = authorizer.allows(self.caller, operation, resource_type, name)
        if not is_allowed or authorization.sample:
            authorization.note(self.caller, operation, resource_type, name, is_allowed, self.method)
        return is_allowed

    def sees(self, operation: int, resource_type: int, name: str) -> bool:
        """Like ``allows``, but without audit entries. Use ``sees`` for an answer that omits the items that the caller
        is not authorized to see."""
        authorization = self.authorization
        if (authorizer := authorization.authorizer) is None:
            return True
        return authorizer.allows(self.caller, operation, resource_type, name)

    def allows_any(self, operation: int, resource_type: int) -> bool:
        """Whether the caller may do ``operation`` on any resource of the type."""
        authorization = self.authorization
        if (authorizer := authorization.authorizer) is None:
            return True
        is_allowed = authorizer.allows_any(self.caller, operation, resource_type)
        authorization.note(self.caller, operation, resource_type, None, is_allowed, self.method)
        return is_allowed

    def note_refusal(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Audit the refusal of a node's call; ACLs do not apply to nodes."""
        if self._reporting is not None:
            self._reporting.note(self.caller, operation, resource_type, name, False, self.method)

    def require(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise the error of the resource's type unless the caller may do ``operation``."""
        if not self.allows(operation, resource_type, name):
            raise refusal(operation, resource_type, name, self.caller.principal)

    def refused(self, names: Iterable[str], operation: int, resource_type: int) -> frozenset[str]:
        """The resources of ``names`` on which the caller is not authorized to do ``operation``."""
        if not self.is_limited:
            return frozenset()
        return frozenset(name for name in set(names) if not self.allows(operation, resource_type, name))

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The operations that the caller may do on the resource, as bits (KIP-430: bit 3 is READ)."""
        found = 0
        for operation in OPERATIONS_OF[resource_type]:
            if self.sees(operation, resource_type, name):
                found |= 1 << operation
        return found


#: The access of code outside of any call, and of calls on listeners without security.
EVERYTHING = Access(NO_CALLER, None)

_current: ContextVar[Access] = ContextVar("headrace-access", default=EVERYTHING)


def current_access() -> Access:
    """Return the access of the call that the current task handles."""
    return _current.get()


def set_access(access: Access) -> None:
    """Set the access for the current task, and for the tasks that it creates from now on."""
    _current.set(access)
