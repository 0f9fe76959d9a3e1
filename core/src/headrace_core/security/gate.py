"""The gate of a listener identifies the caller of each call, and checks whether the caller may make the call.

For each call, in this order:

1. *Identify* the caller. On listeners for nodes, the certificate identifies the node. A broker names the client of
   Kafka's protocol for which it calls a coordinator, and the caller is this client then. On
   listeners for clients, the protocol decides: with SSL the client's certificate identifies the client, with SASL the
   session of the connection; with PLAINTEXT every caller is User:ANONYMOUS. A caller that cannot be identified is
   refused before its request is read.
2. *Check* the call's rules (rules.py). A node needs the right role and may name no other node (node_ids.py); a client
   needs the rights. By a rule with ``each``, only the refused resources get an error, and the call continues with the
   other resources (shapes.py, or the handler of a stream).

The gate of a listener without security checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import unquote

from ..errors import ClusterAuthorizationFailedError, HeadraceError, InvalidRequestError, SaslAuthenticationFailedError
from .access import Access, Authorization, current_access, set_access
from .acl_types import CLUSTER_NAME, Operation, ResourceType, canonical_host, host_of
from .caller import Caller, set_caller
from .certificates import check_not_expired
from .node_ids import CLAIMS, check_claim
from .principal import ANONYMOUS, PRINCIPAL_CHARS_MAX, Principal, parse_principal
from .protocols import CLIENT_ID_CHARS_MAX, CLIENT_ID_KEY
from .refusals import refusal
from .rules import MethodAccess, access_of
from .shapes import HANDLED, SHAPES

INTERNAL = "internal"
#: Metadata key of a call for the token of a SASL session.
SESSION_KEY = "headrace-session"
#: Metadata keys with which a node names the principal and the host of the client for which it calls.
PRINCIPAL_KEY, HOST_KEY = "headrace-principal", "headrace-client-host"
#: Prefixes of the methods of gRPC's libraries: every caller may call the first; the second needs authentication.
_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection."
_HOSTS_MAX = 10_000
_REUSED = [b"true"]  #: Value of gRPC's property for a connection whose client resumed a TLS session.


class NodeCertificate(Protocol):
    """certificates.NodeIdentity."""

    @property
    def role(self) -> str: ...

    @property
    def node_id(self) -> int | None: ...


class Session(Protocol):
    """An authenticated connection."""

    @property
    def principal(self) -> Principal: ...

    @property
    def client_id(self) -> str: ...

    @property
    def token_id(self) -> str | None: ...


class Sessions(Protocol):
    """The SASL sessions of a listener. ``session_of`` raises SaslAuthenticationFailedError for a token that is unknown,
    has expired, or belongs to another connection (``peer``: gRPC's name of the connection)."""

    def session_of(self, token: str, peer: str) -> Session: ...

    def register(self, listener: Any) -> None:
        """Serve the call that opens sessions."""

    def start(self) -> None: ...

    def close(self, why: HeadraceError) -> None:
        """End all sessions, because the listener stops."""


class Gate:
    """The gate of one listener.

    ``protocol``: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. ``authorization``: the node's authorizer.
    ``node_identity`` reads a node's certificate (PEM) and raises SaslAuthenticationFailedError for any other.
    ``principal_of`` returns the principal of a client's certificate (PEM). ``sessions``: needed for SASL.
    ``takes_clients_of``: on the internal listener, the role whose nodes may call for a client, which they name.
    ``on_unknown(host, listener, call, error)`` is called for each call whose caller cannot be identified.
    """

    def __init__(
        self,
        listener: str,
        protocol: str = "PLAINTEXT",
        authorization: Authorization | None = None,
        *,
        node_identity: Callable[[bytes], NodeCertificate] | None = None,
        principal_of: Callable[[bytes], Principal] | None = None,
        sessions: Sessions | None = None,
        takes_clients_of: str = "",
        on_unknown: Callable[[str, str, str, HeadraceError], None] = lambda *_: None,
    ) -> None:
        self._on_unknown = on_unknown
        self.listener = listener
        self.protocol = str(protocol)
        self._authorization = authorization or Authorization()
        self._node_identity = node_identity
        self._principal_of = principal_of
        self._sessions = sessions
        self._takes_clients_of = takes_clients_of
        self._is_secured = self.protocol != "PLAINTEXT"
        self._is_sasl = self.protocol.startswith("SASL_")
        self._hosts: dict[str, str] = {}

    @property
    def sessions(self) -> Sessions | None:
        """The SASL sessions of the listener; None if its protocol is not SASL."""
        return self._sessions

    @property
    def is_open(self) -> bool:
        """Whether every caller may do everything. On listeners for nodes without TLS, callers have no identity."""
        if self._is_secured:
            return False
        return self.listener == INTERNAL or self._authorization.authorizer is None

    # -- who ---------------------------------------------------------------------------------------------------------

    def identify(self, context: Any) -> Caller:
        """Return the caller of a call. Raises SaslAuthenticationFailedError."""
        peer = context.peer()
        host = self._host_of(peer)
        if self.listener == INTERNAL and self._is_secured:
            return self._node(context, host)
        metadata = dict(context.invocation_metadata() or ())
        client_id = unquote(str(metadata.get(CLIENT_ID_KEY, "")))[:CLIENT_ID_CHARS_MAX]
        if self._is_sasl:
            token = metadata.get(SESSION_KEY)
            if not token or self._sessions is None:
                raise SaslAuthenticationFailedError(
                    f"listener {self.listener} is {self.protocol}, and the connection is not authenticated: set "
                    "security.protocol, sasl.mechanism and the credentials"
                )
            session = self._sessions.session_of(str(token), peer)
            return Caller(
                session.principal, host, client_id or session.client_id, self.listener, token_id=session.token_id
            )
        if self._is_secured and self._principal_of is not None:
            pem = _certificate(context)
            principal = ANONYMOUS if pem is None else self._principal_of(pem)
            return Caller(principal, host, client_id, self.listener)
        return Caller(ANONYMOUS, host, client_id, self.listener)

    def _node(self, context: Any, host: str) -> Caller:
        pem = _certificate(context)
        if pem is None or self._node_identity is None:
            raise SaslAuthenticationFailedError(f"listener {self.listener} accepts only nodes with a certificate")
        node = self._node_identity(pem)
        principal = Principal("Node", f"{node.role}:{'*' if node.node_id is None else node.node_id}")
        caller = Caller(principal, host, "", self.listener, node.role, node.node_id)
        metadata = dict(context.invocation_metadata() or ())
        named = metadata.get(PRINCIPAL_KEY)
        if named is None:
            return caller
        if node.role != self._takes_clients_of:
            raise SaslAuthenticationFailedError(f"listener {self.listener}: a {node.role} may not call for a client")
        return _client_of_node(str(named), metadata, self.listener, node.role)

    def _host_of(self, peer: str) -> str:
        host = self._hosts.get(peer)
        if host is None:
            if len(self._hosts) >= _HOSTS_MAX:
                self._hosts.clear()
            host = self._hosts[peer] = host_of(peer)
        return host

    # -- what --------------------------------------------------------------------------------------------------------

    def admit(self, path: str, context: Any) -> Access:
        """Identify the caller of the method ``path``, check the role of a node, and set the caller and the access for
        the current task. Raises SaslAuthenticationFailedError, ClusterAuthorizationFailedError."""
        found = access_of(path)
        if (found is not None and found.is_open) or path.startswith(_HEALTH):
            return _set(Access(Caller(host=self._host_of(context.peer()), listener=self.listener), None))
        try:
            caller = self.identify(context)
        except SaslAuthenticationFailedError as error:
            self._on_unknown(self._host_of(context.peer()), self.listener, path.rpartition(".")[2], error)
            raise
        if caller.role is not None:
            if found is None or caller.role not in found.roles:
                method = path.rpartition(".")[2]
                self._authorization.note(
                    caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME, False, method
                )
                raise ClusterAuthorizationFailedError(
                    f"a {caller.role} is not authorized to call {method} on listener {self.listener}"
                )
            return _set(Access(caller, None, found.method, reporting=self._authorization))
        if self.listener == INTERNAL and not (found is not None and (found.rules or found.is_authenticated)):
            raise ClusterAuthorizationFailedError(f"not authorized to call {path}: clients may not make this call")
        if found is None and not path.startswith(_REFLECTION):
            raise ClusterAuthorizationFailedError(f"not authorized to call {path}: the method has no access rules")
        method = path.rpartition(".")[2] if found is None else found.method
        return _set(Access(caller, self._authorization, method))

    def guarded(self, behaviour: Any, path: str, *, has_request: bool) -> Any:
        """Wrap the handler of a method: check the rules of each call. ``has_request``: whether the method has a single
        request; streams check each request themselves. Raises LookupError for a method that cannot be checked, because
        such a method must not be served."""
        found = access_of(path)
        if found is None and path.startswith((_HEALTH, _REFLECTION)):  # methods of libraries: ``admit`` has their rules
            return behaviour
        if found is None:
            raise LookupError(f"{path} has no option (access) in its proto; add one that says who may call the method")
        if found.method in CLAIMS and has_request:
            return _claimed(behaviour, found.method)
        if found.is_open or not found.rules:
            return self._shaped(behaviour, found)
        needs_shape = any(rule.each for rule in found.rules) or not has_request
        if needs_shape and found.method not in SHAPES and found.method not in HANDLED:
            raise LookupError(f"{found.method} has rules for single items, but no shape in security/shapes.py")
        shaped = self._shaped(behaviour, found)
        if not has_request:
            return shaped

        async def checked(request: Any, context: Any) -> Any:
            access = current_access()
            if access.is_limited:
                check(access, found, request)
            return await shaped(request, context)

        return checked

    def _shaped(self, behaviour: Any, found: MethodAccess) -> Any:
        shape = SHAPES.get(found.method)
        if shape is None:
            return behaviour

        async def shaped(request: Any, context: Any) -> Any:
            access = current_access()
            if not access.is_limited:
                return await behaviour(request, context)
            return await shape(access, found, request, lambda rest: behaviour(rest, context))

        return shaped


def _claimed(behaviour: Any, method: str) -> Any:
    """Wrap the handler of a call between nodes: a node may name only itself."""

    async def claimed(request: Any, context: Any) -> Any:
        check_claim(method, request)
        return await behaviour(request, context)

    return claimed


def check(access: Access, found: MethodAccess, request: Any) -> None:
    """Check the call's rules, without the rules for single items. Raises the error of the first rule that refuses the
    caller."""
    for rule in found.of_call:
        if rule.is_any:
            if not access.allows_any(rule.operation, rule.resource):
                raise refusal(rule.operation, rule.resource, "*", access.caller.principal)
            continue
        granted = access.granted(rule.operation, rule.resource)
        for name in dict.fromkeys(rule.names(request)):
            if granted is not None and name not in granted:
                access.require(rule.operation, rule.resource, name)
    alternatives = found.alternatives
    if not alternatives or any(rule.each for rule in alternatives):
        return
    if not any(_holds(access, rule, request) for rule in alternatives):
        first = alternatives[0]
        name = next(iter(first.names(request)), "")
        raise refusal(first.operation, first.resource, name, access.caller.principal)


def _holds(access: Access, rule: Any, request: Any) -> bool:
    if rule.is_any:
        return access.allows_any(rule.operation, rule.resource)
    return all(access.allows(rule.operation, rule.resource, name) for name in rule.names(request))


def _set(access: Access) -> Access:
    set_caller(access.caller)
    set_access(access)
    return access


def _certificate(context: Any) -> bytes | None:
    """The certificate that a client presented. If the client resumed a TLS session, only an earlier handshake has
    verified the certificate; an expired certificate then raises SaslAuthenticationFailedError. (gRPC resumes sessions
    for days. A connection that is open when its client's certificate expires stays open.)"""
    properties = context.auth_context()
    found = properties.get("x509_pem_cert")
    if not found:
        return None
    if properties.get("ssl_session_reused") == _REUSED:
        check_not_expired(found[0])
    pem: bytes = found[0]
    return pem


def _client_of_node(named: str, metadata: dict[str, Any], listener: str, role: str) -> Caller:
    """The client that a node names, which calls for it. Raises SaslAuthenticationFailedError for a principal that is no
    user."""
    text = unquote(named)
    try:
        principal = parse_principal(text)
    except InvalidRequestError:
        raise SaslAuthenticationFailedError(
            f"the {role} sent {text[:60]!r}, which is not a principal of the form TYPE:NAME"
        ) from None
    if principal.kind != "User" or len(text) > PRINCIPAL_CHARS_MAX:
        raise SaslAuthenticationFailedError(
            f"a {role} can act only for a principal of type User, not for {text[:60]!r}"
        )
    client_id = unquote(str(metadata.get(CLIENT_ID_KEY, "")))[:CLIENT_ID_CHARS_MAX]
    return Caller(principal, canonical_host(str(metadata.get(HOST_KEY, ""))), client_id, listener)
