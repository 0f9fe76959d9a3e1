"""Kafka's server keys that a node must not seem to obey: security, classes of Java's, ZooKeeper, quotas.

Whoever sets one expects to be protected or bounded by it. So each is an error with the reason, unless it says what
holds anyway.
"""

from __future__ import annotations

from ..config import LONG_MAX, Kind, Scope
from .declaring import refused

_TLS = "TLS is not built yet: keep the listeners on loopback or behind a tunnel, and leave this key out"
_SASL = "authentication is not built yet: everybody who can connect is served; leave this key out"
_ACLS = "authorization is not built yet: everybody who can connect may do everything; leave this key out"
_JAVA = "a class of Java's cannot be loaded here; leave this key out"
_ZOOKEEPER = "there is no ZooKeeper: the controllers keep the metadata (controller.quorum.voters)"
_LISTENERS = "it was an early name in Kafka; write listeners=client://host:port,internal://host:port"
_PROVIDERS = "values are taken as they stand, ${...} is not replaced; write the value, or -o key=value at the start"
_TIERED = "tiered storage is not built; leave it out"


REFUSED = (
    refused("ssl.*", None, "TLS: certificates, protocols, ciphers.", _TLS, kind=Kind.PASSWORD),
    refused("sasl.*", None, "SASL: mechanisms, logins, tokens.", _SASL, kind=Kind.PASSWORD),
    refused(
        "listener.name.*",
        None,
        "Settings of one listener: its certificates, mechanisms, limits.",
        "a listener has no settings of its own yet (TLS, SASL and limits come later); leave this key out",
        kind=Kind.PASSWORD,
    ),
    refused("security.inter.broker.protocol", "PLAINTEXT", "The security protocol between brokers.", _TLS),
    refused("security.providers", None, "Java classes with security algorithms.", _JAVA),
    refused("principal.builder.class", None, "The Java class that names who is connected.", _JAVA),
    refused("connections.max.reauth.ms", 0, "When a client must authenticate again.", _SASL, kind=Kind.LONG),
    refused(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a failed authentication waits for its answer.",
        _SASL,
    ),
    refused(
        "delegation.token.*",
        None,
        "Delegation tokens: their secret, their lives.",
        _SASL,
        kind=Kind.PASSWORD,
        source="KIP-48",
    ),
    refused("authorizer.class.name", "", "The Java class that decides who may do what.", _ACLS, source="KIP-11"),
    refused("super.users", None, "Who may do everything.", _ACLS, source="KIP-11"),
    refused(
        "allow.everyone.if.no.acl.found",
        None,
        "May everybody use what has no ACL?",
        _ACLS,
        source="KIP-11",
    ),
    refused(
        "create.topic.policy.class.name",
        None,
        "The Java class that may refuse new topics.",
        _JAVA,
        source="KIP-108",
    ),
    refused(
        "alter.config.policy.class.name",
        None,
        "The Java class that may refuse changes of configurations.",
        _JAVA,
        source="KIP-133",
    ),
    refused("client.quota.callback.class", None, "The Java class that decides quotas.", _JAVA, source="KIP-257"),
    refused("config.providers", [], "Where ${...} in values is looked up.", _PROVIDERS, source="KIP-297"),
    refused("config.providers.*", None, "Settings of such a provider.", _PROVIDERS, kind=Kind.PASSWORD),
    refused("password.encoder.*", None, "How passwords were kept in ZooKeeper.", _ZOOKEEPER, kind=Kind.PASSWORD),
    refused("zookeeper.*", None, "Where ZooKeeper is, and how to talk to it (until Kafka 4).", _ZOOKEEPER),
    *(
        refused(name, None, "An address, until Kafka 3.", _LISTENERS)
        for name in ("host.name", "port", "advertised.host.name", "advertised.port")
    ),
    refused(
        "remote.log.storage.system.enable",
        False,
        "Tiered storage, for the whole cluster.",
        _TIERED,
        source="KIP-405",
    ),
    refused(
        "cordoned.log.dirs",
        [],
        "Log directories that get no new partitions.",
        "keeping a directory free of new partitions is not built; leave it out",
        scope=Scope.PER_BROKER,
        source="KIP-1066",
    ),
    *(
        refused(name, LONG_MAX, doc, "quotas are not built yet; leave it out", kind=Kind.LONG, low=1)
        for name, doc in (
            ("quota.producer.default", "Bytes per second that one client id may produce."),
            ("quota.consumer.default", "Bytes per second that one client id may fetch."),
        )
    ),
)
