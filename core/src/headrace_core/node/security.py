"""Security of a node: the credentials of its listeners, and of its channels to other nodes.

A node has one identity towards other nodes: the certificate of its listener *internal*. The node presents this
certificate on the listener internal, and on every channel that it opens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc

from ..clock import SystemClock
from ..connections import AddressLimits
from ..errors import HeadraceError, InvalidConfigError, ServerBusyError
from ..metadata.image import MetadataImage
from ..metadata.security import SecurityImage
from ..rpc.channel import PLAINTEXT, Channels
from ..security.access import Authorization
from ..security.acl_types import host_of
from ..security.audit import audit_log_of
from ..security.authorization import authorization_of
from ..security.certificates import NodeIdentity, node_identity
from ..security.gate import Gate, Sessions
from ..security.mapping import PrincipalMapper, user_principal
from ..security.principal import Principal
from ..security.protocols import SecurityProtocol
from ..security.tls import TlsSettings, TlsSource, set_ciphers
from .config import NodeConfig
from .listeners import INTERNAL, serves_clients, speaks_kafka

logger = logging.getLogger("headrace.security")


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The security settings of one listener. ``protocol``: the security protocol by which callers are authenticated.
    ``tls`` None: not encrypted. ``requires_certificate``: the listener accepts only clients with a verified
    certificate; if False, and the listener has no SASL, clients are anonymous. ``mapper`` makes the names of principals
    from the certificates of users."""

    name: str
    protocol: SecurityProtocol
    tls: TlsSource | None
    requires_certificate: bool
    mapper: PrincipalMapper

    def principal_of(self, pem: bytes) -> Principal:
        """The principal of a client's certificate. Raises SaslAuthenticationFailedError for the certificate of a node,
        which names no user, and for a name that no rule matches."""
        return user_principal(pem, self.mapper)


class NodeSecurity:
    """The security of a node's listeners and channels. ``identity``: role and id in the node's certificate; None
    without security."""

    def __init__(self, config: NodeConfig) -> None:
        """Read keys and certificates of the gRPC listeners. Raises InvalidConfigError, which names the listener, the
        key and the file."""
        self.listeners = {
            name: _listener(config, name, protocol)
            for name, protocol in config.protocols.items()
            if not speaks_kafka(name)
        }
        self._config = config
        self._addresses = AddressLimits.of(config.values)
        self._image: Callable[[], MetadataImage] = lambda: MetadataImage()
        #: The audit log; None without audit.log.path.
        self.audit = audit_log_of(config.values)
        #: The authorizer of the listeners for clients.
        self.authorization = authorization_of(
            config.values,
            self._known,
            self.audit,
            config.values["audit.log.allowed.sample"],
        )
        self.identity: NodeIdentity | None = None
        self.channels = PLAINTEXT
        internal = self.listeners.get(INTERNAL)
        mode = config.values["internal.tls.mode"]
        if internal is not None and internal.tls is not None:
            self.identity = _own_identity(config, internal.tls)
            if mode != "allow":
                self.channels = Channels(internal.tls)
        #: Whether the internal listener also accepts unencrypted connections, and trusts every caller.
        self.takes_plaintext = mode != "require" and internal is not None and internal.tls is not None
        if self.takes_plaintext and internal is not None:
            self.listeners[INTERNAL] = replace(internal, protocol=SecurityProtocol.PLAINTEXT)
        trusts_all = internal is not None and self.listeners[INTERNAL].protocol is SecurityProtocol.PLAINTEXT
        if trusts_all and config.values["authorizer.class.name"]:
            logger.warning(
                "the listener internal trusts every caller, so no ACL applies to a caller that reaches its port: %s",
                "set internal.tls.mode=require when all nodes speak TLS"
                if self.takes_plaintext
                else "set internal:SSL in listener.security.protocol.map",
            )

    def port_options(
        self, listener: str, authorization: Authorization | None = None, sessions: Sessions | None = None
    ) -> dict[str, Any]:
        """Arguments of Listener for the port of a listener: its credentials, the gate that authenticates and
        authorizes calls, and the limits of addresses. ``authorization``: the node's authorizer. ``sessions``: needed
        for SASL."""
        found = self.listeners[listener]
        gate = Gate(
            listener,
            found.protocol,
            authorization or self.authorization,
            node_identity=node_identity,
            principal_of=found.principal_of,
            sessions=sessions or self.sessions_of(listener),
            takes_clients_of="broker" if self._config.role == "coordinator" and listener == INTERNAL else "",
            **({} if self.audit is None else {"on_unknown": self.audit.call_refused}),
        )
        takes_plaintext = self.takes_plaintext and listener == INTERNAL
        return {
            "credentials": self.credentials(listener),
            "takes_plaintext": takes_plaintext,
            "gate": gate,
            "addresses": self._addresses if serves_clients(listener) else None,
        }

    def follow(self, image: Callable[[], MetadataImage]) -> None:
        """Take users and ACLs from the image that ``image`` returns; call ``follow`` before the listeners are
        created."""
        self._image = image

    def _known(self) -> SecurityImage | None:
        """The users and ACLs; None until the node has read its metadata, which happens after its listeners open."""
        image = self._image()
        return image.security if image.next_offset else None

    def _users(self) -> SecurityImage:
        found = self._known()
        if found is None:  # without this error, every password would seem to be wrong
            raise ServerBusyError("this node has just started and does not know the users yet; retry")
        return found

    def sessions_of(self, listener: str) -> Sessions | None:
        """The SASL sessions of a listener; None if its protocol is not SASL. Raises InvalidConfigError."""
        if not self.listeners[listener].protocol.sasl:
            return None
        from ..security.sasl.mechanisms import Mechanisms
        from .sasl_sessions import Sessions as SaslSessions

        values, clock = self._config.listener_values(listener), SystemClock()
        try:
            return SaslSessions(
                listener,
                Mechanisms(values, self._users, clock.now_ms),
                now_ms=clock.now_ms,
                max_reauth_ms=values["connections.max.reauth.ms"],
                failed_delay_s=values["connection.failed.authentication.delay.ms"] / 1_000,
                receive_bytes_max=values["sasl.server.max.receive.size"],
                on_attempt=partial(self._attempted, listener),
            )
        except InvalidConfigError as error:
            raise InvalidConfigError(f"listener {listener}: {error.message}") from None

    def _attempted(
        self, listener: str, peer: str, mechanism: str, user: str | None, error: HeadraceError | None
    ) -> None:
        if error is not None and not error.retriable and self.audit is not None:
            self.audit.login_refused(host_of(peer), "", listener, mechanism, error)

    def credentials(self, listener: str) -> grpc.ServerCredentials | None:
        """Credentials for the port of a listener; None: the listener is not encrypted."""
        found = self.listeners[listener]
        if found.tls is None:
            return None
        return found.tls.server_credentials(requires_client=found.requires_certificate)


def _listener(config: NodeConfig, name: str, protocol: SecurityProtocol) -> ListenerSecurity:
    try:
        settings = TlsSettings.of(config.listener_values(name))
        mapper = PrincipalMapper(settings.mapping_rules)
        if not protocol.encrypted:
            return ListenerSecurity(name, protocol, None, False, mapper)
        settings.check_for_grpc()
        set_ciphers(settings.cipher_suites)
        requires = name == INTERNAL or (settings.client_auth == "required")
        return ListenerSecurity(
            name, protocol, TlsSource(settings, needs_key=True, needs_trust=requires), requires, mapper
        )
    except InvalidConfigError as error:
        raise InvalidConfigError(f"listener {name}: {error.message}") from None


def _own_identity(config: NodeConfig, tls: TlsSource) -> NodeIdentity:
    """Check that the node's own certificate is for this node, because other nodes would refuse it."""
    chain = tls.material.chain
    assert chain is not None
    try:
        identity = node_identity(chain)
    except HeadraceError as error:
        raise InvalidConfigError(f"listener {INTERNAL}: {error.message}") from None
    if identity.role != config.role or identity.node_id not in (None, config.node_id):
        own = config.role if config.node_id < 0 else f"{config.role} {config.node_id}"
        raise InvalidConfigError(
            f"listener {INTERNAL}: the certificate {identity} is not for {own}; issue one with "
            f"`headrace certs issue {own}`"
        )
    return identity
