"""Configuration keys of security: TLS, SASL, access control, delegation tokens, quotas.

Names and defaults are Kafka's; the names in the group ``TLS_FILES`` are librdkafka's. Every key of ``PER_LISTENER`` can
be set for one listener: ``listener.name.client.ssl.client.auth=required`` has priority over ``ssl.client.auth``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .definition import HEADRACE, LONG_MAX, ConfigKey, Kind, Scope, Status, accepted, honoured, refused

# -- TLS ---------------------------------------------------------------------------------------------------------------

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
#: Formats of keys and certificates.
STORE_TYPES = ("PEM", "PKCS12")

_JAVA = "Headrace cannot load Java classes; leave this key out"
_JAVA_TLS = "has no effect: gRPC and Python bring their own implementation of TLS"


def _store_type(value: Any) -> str | None:
    if str(value).upper() in STORE_TYPES:
        return None
    hint = (
        "; convert the file: keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12"
        if str(value).upper() == "JKS"
        else ""
    )
    return f"must be PEM or PKCS12{hint}"


def _versions(value: Any) -> str | None:
    wrong = [each for each in value if each not in TLS_VERSIONS]
    if wrong:
        return f"{', '.join(wrong)}: only TLSv1.2 and TLSv1.3 are offered"
    return None if value else "is empty: name TLSv1.2, TLSv1.3 or both"


_TLS_COMMON = (
    honoured(
        "ssl.keystore.type",
        "PEM",
        "The format of the keystore: PEM or PKCS12 (the default in Kafka is JKS, which Headrace does not read).",
        check=_store_type,
    ),
    honoured(
        "ssl.keystore.location",
        None,
        "The file with this side's private key and certificate chain. As PEM, the file has both. The file is read "
        "again when it changes.",
    ),
    honoured("ssl.keystore.password", None, "The password of a PKCS12 keystore.", kind=Kind.PASSWORD),
    honoured(
        "ssl.keystore.certificate.chain",
        None,
        "The certificate chain itself, as PEM, instead of ssl.keystore.location.",
        kind=Kind.PASSWORD,
        source="KIP-651",
    ),
    honoured(
        "ssl.keystore.key",
        None,
        "The private key itself, as PEM (PKCS#8), with ssl.keystore.certificate.chain.",
        kind=Kind.PASSWORD,
        source="KIP-651",
    ),
    honoured("ssl.key.password", None, "The password of an encrypted private key.", kind=Kind.PASSWORD),
    honoured(
        "ssl.truststore.type",
        "PEM",
        "The format of the truststore: PEM or PKCS12 (the default in Kafka is JKS, which Headrace does not read).",
        check=_store_type,
    ),
    honoured(
        "ssl.truststore.location",
        None,
        "The file with the authorities whose certificates this side trusts. The file is read again when it changes.",
    ),
    honoured("ssl.truststore.password", None, "The password of a PKCS12 truststore.", kind=Kind.PASSWORD),
    honoured(
        "ssl.truststore.certificates",
        None,
        "The trusted certificates themselves, as PEM, instead of ssl.truststore.location.",
        kind=Kind.PASSWORD,
        source="KIP-651",
    ),
    honoured(
        "ssl.enabled.protocols",
        list(TLS_VERSIONS),
        "The versions of TLS that this side offers. gRPC always offers both TLSv1.2 and TLSv1.3; HTTP listeners may "
        "offer only one of the two.",
        kind=Kind.LIST,
        check=_versions,
    ),
    honoured(
        "ssl.cipher.suites",
        [],
        "The cipher suites of TLS 1.2, by their names in Java or OpenSSL; empty: gRPC's secure suites. gRPC has one "
        "list for "
        "each process, and always offers the three suites of TLS 1.3, so the list must name them too.",
        kind=Kind.LIST,
    ),
    honoured(
        "ssl.endpoint.identification.algorithm",
        "https",
        "How a client checks that a server's certificate has the name or address that it connected to. gRPC always "
        "checks, so https is the only value.",
        check=lambda value: (
            None
            if str(value).lower() == "https"
            else "gRPC always checks the names in certificates; add the name or the IP address to the certificate "
            "(headrace certs issue --host NAME) and leave this key out"
        ),
    ),
    accepted("ssl.protocol", "TLSv1.3", "The version of TLS in Java's SSLContext.", _JAVA_TLS),
    accepted("ssl.provider", None, "The name of Java's security provider.", _JAVA_TLS),
    accepted("ssl.keymanager.algorithm", "SunX509", "The algorithm of Java's key manager.", _JAVA_TLS),
    accepted("ssl.trustmanager.algorithm", "PKIX", "The algorithm of Java's trust manager.", _JAVA_TLS),
    accepted("ssl.secure.random.implementation", None, "The name of Java's random number generator.", _JAVA_TLS),
    refused("ssl.engine.factory.class", None, "The Java class that makes TLS engines.", _JAVA, source="KIP-519"),
)

#: librdkafka's names for PEM files.
TLS_FILES = (
    honoured("ssl.ca.location", None, "A PEM file with the authorities to trust (librdkafka's name)."),
    honoured("ssl.certificate.location", None, "A PEM file with this side's certificate chain (librdkafka's name)."),
    honoured(
        "ssl.key.location",
        None,
        "A PEM file with the private key of ssl.certificate.location (librdkafka's name).",
    ),
)

#: Keys of TLS on servers.
TLS = (
    *_TLS_COMMON,
    *TLS_FILES,
    honoured(
        "ssl.client.auth",
        "none",
        "Whether clients must present a certificate: required, requested or none. Only a gateway's Kafka listeners "
        "support requested, because gRPC does not have it. Internal listeners always require certificates.",
        choices=("required", "requested", "none"),
    ),
    honoured(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How the distinguished name of a client's certificate becomes a principal: rules RULE:pattern/replacement/, "
        "with L or U for the case, separated by commas; the first match applies. DEFAULT is the whole name.",
        source="KIP-371",
    ),
    accepted(
        "ssl.allow.dn.changes",
        False,
        "Whether a new keystore may have another distinguished name.",
        "has no effect: a new file may have any name that the other side accepts",
    ),
    accepted(
        "ssl.allow.san.changes",
        False,
        "Whether a new keystore may lack names of the old keystore.",
        "has no effect: a new file may have any name that the other side accepts",
    ),
)

#: Keys of TLS on clients.
CLIENT_TLS = (*_TLS_COMMON, *TLS_FILES)

# -- SASL (users, mechanisms, sessions) --------------------------------------------------------------------------------

_KAFKA_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_NO_KINIT = "has no effect: the Kerberos library gets the tickets of a keytab itself; renew a ticket cache with kinit"
_REFRESH = "has no effect: the client gets a new token when the old one has passed 80 % of its life"


def _kafka_handler(value: Any) -> str | None:
    if not value or str(value).startswith(_KAFKA_OAUTH):
        return None
    return "Headrace cannot load Java classes; leave this key out"


_SERVERS_HAVE_KEYS = "has no effect: a server needs its keytab only, and no tickets"
_NODES_USE_TLS = "has no effect: nodes authenticate each other with certificates"
_NO_ASSERTIONS = "clients do not sign assertions; set sasl.oauthbearer.client.credentials.client.id and .client.secret"
_SERVERS_VERIFY = "has no effect: servers verify tokens, clients do not"
_ONE_ATTEMPT = "has no effect: one attempt takes at most 10 s, and failures are tried again"

_ASSERTIONS = tuple(
    refused(f"sasl.oauthbearer.assertion.{name}", default, doc, _NO_ASSERTIONS, source="KIP-1139", **more)
    for name, default, doc, more in (
        ("algorithm", "RS256", "The algorithm that signs an assertion.", {}),
        ("claim.aud", None, "The claim aud of an assertion.", {}),
        ("claim.exp.seconds", 300, "How long an assertion is valid.", {}),
        ("claim.iss", None, "The claim iss of an assertion.", {}),
        ("claim.jti.include", False, "Whether an assertion has an id.", {}),
        ("claim.nbf.seconds", 60, "How far before the present time an assertion's validity begins.", {}),
        ("claim.sub", None, "The claim sub of an assertion.", {}),
        ("file", None, "A file with a ready-made assertion.", {}),
        ("private.key.file", None, "The file with the key that signs assertions.", {}),
        ("private.key.passphrase", None, "The password of the key that signs assertions.", {"kind": Kind.PASSWORD}),
        ("template.file", None, "The file with the other claims of assertions.", {}),
    )
)

_OAUTH_COMMON = (
    *_ASSERTIONS,
    *(
        accepted(
            f"sasl.oauthbearer.jwt.{name}.class",
            f"{_KAFKA_OAUTH}DefaultJwt{name.title()}",
            doc,
            "has no effect: Kafka's own classes are accepted",
            check=_kafka_handler,
            source="KIP-1139",
        )
        for name, doc in (
            ("retriever", "The Java class that gets tokens."),
            ("validator", "The Java class that checks tokens."),
        )
    ),
    *(
        accepted(f"sasl.login.{name}", default, doc, _ONE_ATTEMPT, kind=kind, source="KIP-768")
        for name, kind, default, doc in (
            ("connect.timeout.ms", Kind.INT, None, "How long a connection to the token endpoint may take."),
            ("read.timeout.ms", Kind.INT, None, "How long an answer of the token endpoint may take."),
            ("retry.backoff.ms", Kind.LONG, 100, "The pause after the first failed attempt to get a token."),
            ("retry.backoff.max.ms", Kind.LONG, 10_000, "The longest pause after failed attempts to get a token."),
        )
    ),
    honoured(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        "The claim of a token that has its scopes: a list, or a text with spaces.",
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        "The claim of a token that has the user's name.",
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.header.urlencode",
        False,
        "Whether a client percent-encodes its id and secret in the Authorization header, as RFC 6749 asks.",
        source="KIP-1025",
    ),
    accepted(
        "sasl.login.callback.handler.class",
        None,
        "The Java class that gets tokens.",
        "the client gets tokens itself; Kafka's own classes for OAUTHBEARER are accepted",
        check=_kafka_handler,
        source="KIP-86",
    ),
    refused("sasl.login.class", None, "The Java class of the login.", _JAVA, source="KIP-86"),
    *(
        accepted(f"sasl.login.refresh.{name}", default, doc, _REFRESH, source="KIP-368")
        for name, default, doc in (
            ("window.factor", 0.8, "The part of a token's life after which it is renewed."),
            ("window.jitter", 0.05, "The random part of sasl.login.refresh.window.factor."),
            ("min.period.seconds", 60, "The least time between two renewals."),
            ("buffer.seconds", 300, "The time before the token's end at which it is renewed at the latest."),
        )
    ),
)

_KERBEROS_COMMON = (
    accepted("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "The path of kinit.", _NO_KINIT),
    accepted(
        "sasl.kerberos.min.time.before.relogin", 60_000, "The least time between two logins.", _NO_KINIT, kind=Kind.LONG
    ),
)

#: Keys of GSSAPI on clients.
_KERBEROS_CLIENT = (
    *_KERBEROS_COMMON,
    honoured(
        "sasl.kerberos.service.name",
        None,
        "The first part of the servers' Kerberos names: kafka in kafka/HOST@REALM. GSSAPI needs it, or serviceName in "
        "sasl.jaas.config.",
    ),
    honoured(
        "sasl.kerberos.ticket.renew.window.factor",
        0.8,
        "The part of a session's life after which a client of GSSAPI authenticates again.",
        low=0.1,
        high=1,
    ),
    honoured(
        "sasl.kerberos.ticket.renew.jitter",
        0.05,
        "The random part of a session's life that is added to sasl.kerberos.ticket.renew.window.factor.",
        low=0,
        high=0.25,
    ),
    honoured(
        "sasl.kerberos.keytab",
        None,
        "The keytab of this client (librdkafka's name). Without it, tickets come from the ticket cache (kinit).",
    ),
    honoured(
        "sasl.kerberos.principal",
        None,
        "The Kerberos name of this client (librdkafka's name), such as alice@EXAMPLE.COM. A keytab needs it.",
    ),
)

#: Keys of GSSAPI on servers.
_KERBEROS_SERVER = (
    *_KERBEROS_COMMON,
    honoured(
        "sasl.kerberos.service.name",
        None,
        "The first part of the listener's Kerberos name. It must equal the first part of the principal in "
        "sasl.jaas.config, and may be left out.",
    ),
    *(
        accepted(f"sasl.kerberos.ticket.renew.{name}", default, doc, _SERVERS_HAVE_KEYS)
        for name, default, doc in (
            ("window.factor", 0.8, "The part of a ticket's life before renewal."),
            ("jitter", 0.05, "The random part of the time of renewal."),
        )
    ),
    honoured(
        "sasl.kerberos.principal.to.local.rules",
        ["DEFAULT"],
        "How the name of a Kerberos principal becomes a user's name: rules in Kafka's syntax (RULE:…), separated by "
        "commas; the first match applies. DEFAULT takes the first part of a name in the default realm.",
        kind=Kind.LIST,
    ),
)

#: How servers verify the tokens of OAUTHBEARER.
_VERIFICATION = (
    honoured(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        "The URL (https: or file:) of the keys that verify the tokens of OAUTHBEARER.",
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "The time after which the keys are read again. A file is read again after at most 10 s.",
        kind=Kind.LONG,
        low=1_000,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        "The pause after the first failed read of the keys.",
        kind=Kind.LONG,
        low=1,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        "The longest pause after failed reads of the keys.",
        kind=Kind.LONG,
        low=1,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.expected.audience",
        [],
        "A token must name one of these audiences; empty: any audience.",
        kind=Kind.LIST,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.expected.issuer",
        None,
        "The issuer that a token must name; none: any issuer.",
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "How far the authority's clock may differ from this server's.",
        low=0,
        high=3_600,
        source="KIP-768",
    ),
)

#: The mechanisms of SASL that a listener may offer.
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

#: Keys without effect that Kafka alters for one broker while it runs, so a broker accepts a change of them.
_ALTERED_PER_BROKER = frozenset(
    {
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.mechanism.inter.broker.protocol",
    }
)


def _altered_per_broker(key: ConfigKey) -> ConfigKey:
    if key.name in _ALTERED_PER_BROKER and key.status is Status.ACCEPTED:
        return dataclasses.replace(key, scope=Scope.PER_BROKER)
    return key


#: Keys of SASL on servers. ``listener.name.NAME.MECHANISM.sasl.jaas.config`` has priority over sasl.jaas.config.
_SASL = (
    honoured(
        "sasl.enabled.mechanisms",
        ["GSSAPI"],
        "The SASL mechanisms that a listener offers. GSSAPI (Kerberos), the default, needs a keytab in "
        "sasl.jaas.config.",
        choices=SASL_MECHANISMS,
    ),
    honoured(
        "sasl.jaas.config",
        None,
        "The login module of a mechanism. PlainLoginModule with options user_NAME=PASSWORD has a fixed list of users; "
        "without them PLAIN uses the SCRAM users of the metadata. Krb5LoginModule has keyTab and principal.",
        kind=Kind.PASSWORD,
    ),
    *_KERBEROS_SERVER,
    *_VERIFICATION,
    honoured(
        "sasl.oauthbearer.expected.scope",
        [],
        "The scopes that a token must have, all of them.",
        kind=Kind.LIST,
        source=HEADRACE,
    ),
    *_OAUTH_COMMON,
    honoured(
        "sasl.server.max.receive.size",
        524_288,
        "The largest message of an authentication, in bytes.",
        low=1_024,
        high=4 * 1024 * 1024,
    ),
    accepted("sasl.mechanism.inter.broker.protocol", "GSSAPI", "The mechanism between brokers.", _NODES_USE_TLS),
    accepted("sasl.mechanism.controller.protocol", "GSSAPI", "The mechanism between controllers.", _NODES_USE_TLS),
    *(
        accepted(f"sasl.oauthbearer.{name}", None, doc, _NODES_USE_TLS, source=source, **more)
        for name, doc, source, more in (
            ("token.endpoint.url", "The URL at which a node gets tokens.", "KIP-768", {}),
            ("scope", "The scope that a node requests.", "KIP-1139", {}),
            ("client.credentials.client.id", "The client id of a node.", "KIP-1139", {}),
            ("client.credentials.client.secret", "The client secret of a node.", "KIP-1139", {"kind": Kind.PASSWORD}),
        )
    ),
    refused("sasl.client.callback.handler.class", None, "The Java class of a client's callbacks.", _JAVA),
    accepted(
        "sasl.server.callback.handler.class",
        None,
        "The Java class that checks credentials.",
        "the servers check credentials themselves; Kafka's own classes for OAUTHBEARER are accepted",
        check=_kafka_handler,
        source="KIP-86",
    ),
    honoured(
        "connections.max.reauth.ms",
        0,
        "The time after which a client must authenticate again; 0: never. Sessions also end with the token or the "
        "ticket that opened them.",
        kind=Kind.LONG,
        low=0,
        source="KIP-368",
    ),
    honoured(
        "connection.failed.authentication.delay.ms",
        100,
        "How long the answer to a failed authentication is delayed.",
        low=0,
        high=10_000,
        source="KIP-306",
    ),
)
SASL: tuple[ConfigKey, ...] = tuple(map(_altered_per_broker, _SASL))

#: Keys of SASL on clients.
CLIENT_SASL: tuple[ConfigKey, ...] = (
    honoured(
        "sasl.mechanism",
        "GSSAPI",
        "The SASL mechanism of this client. The default, GSSAPI (Kerberos), needs sasl.kerberos.service.name.",
        choices=SASL_MECHANISMS,
    ),
    honoured("sasl.mechanisms", None, "librdkafka's name of sasl.mechanism.", choices=SASL_MECHANISMS),
    honoured(
        "sasl.username",
        None,
        "The user of PLAIN and SCRAM (librdkafka's name).",
    ),
    honoured(
        "sasl.password",
        None,
        "The password of PLAIN and SCRAM (librdkafka's name). ${env:NAME} and ${file:PATH} are replaced.",
        kind=Kind.PASSWORD,
    ),
    honoured(
        "sasl.jaas.config",
        None,
        "The login as Kafka's Java clients have it: PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule, "
        "Krb5LoginModule. "
        "${env:NAME} and ${file:PATH} in options are replaced.",
        kind=Kind.PASSWORD,
    ),
    honoured(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "The URL at which the client gets tokens for its client id and secret (RFC 6749, section 4.4); or file:PATH "
        "of a file with a token.",
        source="KIP-768",
    ),
    *(
        honoured(name, None, doc, source=source, **more)
        for name, doc, source, more in (
            ("sasl.oauthbearer.client.credentials.client.id", "The client id for the token endpoint.", "KIP-1139", {}),
            (
                "sasl.oauthbearer.client.credentials.client.secret",
                "The client secret for the token endpoint.",
                "KIP-1139",
                {"kind": Kind.PASSWORD},
            ),
            ("sasl.oauthbearer.client.id", "librdkafka's name of the client id.", "librdkafka", {}),
            (
                "sasl.oauthbearer.client.secret",
                "librdkafka's name of the client secret.",
                "librdkafka",
                {"kind": Kind.PASSWORD},
            ),
            ("sasl.oauthbearer.scope", "The scope to ask for at the token endpoint.", "KIP-1139", {}),
            (
                "sasl.oauthbearer.extensions",
                "Extensions that the server gets with the token: name=value, separated by commas.",
                "librdkafka",
                {"kind": Kind.LIST},
            ),
            (
                "sasl.oauthbearer.token",
                "A token, instead of a token endpoint.",
                HEADRACE,
                {"kind": Kind.PASSWORD},
            ),
        )
    ),
    honoured(
        "oauth.cb",
        None,
        "A function that returns a token and when it expires: oauth_cb(config) -> (token, seconds since 1970), as in "
        "confluent-kafka.",
        kind=Kind.CLASS,
        source="Confluent",
    ),
    *_KERBEROS_CLIENT,
    accepted(
        "sasl.oauthbearer.method",
        "oidc",
        "How librdkafka gets tokens.",
        "the other keys of sasl.oauthbearer select the method",
        source="librdkafka",
    ),
    *_OAUTH_COMMON,
    *(dataclasses.replace(key, note=_SERVERS_VERIFY, check=None) for key in _VERIFICATION),
    refused("sasl.client.callback.handler.class", None, "The Java class of this client's callbacks.", _JAVA),
)

# -- delegation tokens -------------------------------------------------------------------------------------------------

DELEGATION_TOKENS: tuple[ConfigKey, ...] = (
    honoured(
        "delegation.token.secret.key",
        None,
        "The secret from which the passwords of delegation tokens are derived; the same on all nodes. Without it "
        "there are "
        "no delegation tokens. ${env:NAME} and ${file:PATH} are replaced.",
        kind=Kind.PASSWORD,
        source="KIP-48",
    ),
    honoured(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        "The longest life of a token in milliseconds; renewals cannot exceed it.",
        kind=Kind.LONG,
        low=1,
        source="KIP-48",
    ),
    honoured(
        "delegation.token.expiry.time.ms",
        86_400_000,
        "How long a token is valid before it must be renewed.",
        kind=Kind.LONG,
        low=1,
        source="KIP-48",
    ),
    honoured(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        "How often the controller removes expired tokens.",
        kind=Kind.LONG,
        low=1,
        source="KIP-48",
    ),
)

# -- access control ----------------------------------------------------------------------------------------------------


def _authorizer(value: Any) -> str | None:
    return None if value.rpartition(".")[2] in ("", "StandardAuthorizer") else "must be StandardAuthorizer, or empty"


ACCESS: tuple[ConfigKey, ...] = (
    honoured(
        "authorizer.class.name",
        "",
        "StandardAuthorizer: callers may do what access control entries allow (`headrace acls`); Kafka's full name of "
        "the class is accepted, too. Empty: every authenticated caller may do everything. Set it on every node.",
        check=_authorizer,
        source="KIP-11",
    ),
    honoured(
        "super.users",
        "",
        "The principals that may do everything, separated by semicolons: User:admin;User:CN=ops.",
        source="KIP-11",
    ),
    honoured(
        "allow.everyone.if.no.acl.found",
        False,
        "Whether a resource to which no access control entry applies is open to all callers.",
        source="KIP-11",
    ),
    honoured(
        "audit.log.path",
        None,
        "The file for the audit log: a line of JSON for each refused access, and for a sample of the allowed "
        "accesses. None: no "
        "audit log. Each node needs a separate file.",
        source=HEADRACE,
    ),
    honoured(
        "audit.log.max.bytes",
        64 * 1024 * 1024,
        "The size at which a new audit log begins.",
        low=64 * 1024,
        source=HEADRACE,
    ),
    honoured("audit.log.files", 4, "The number of older audit logs that are kept.", low=1, high=1_000, source=HEADRACE),
    honoured(
        "audit.log.allowed.sample",
        0,
        "Of how many allowed accesses one is in the audit log; 1: all, 0: none.",
        low=0,
        source=HEADRACE,
    ),
)

# -- quotas ------------------------------------------------------------------------------------------------------------

QUOTAS: tuple[ConfigKey, ...] = (
    *(
        honoured(
            name,
            LONG_MAX,
            f"Bytes per second that one client id may {what} on each broker, unless a quota in the metadata applies to "
            "it. The default is no limit.",
            kind=Kind.LONG,
            low=1,
            scope=Scope.CLUSTER_WIDE,
            source="KIP-13",
        )
        for name, what in (("quota.producer.default", "produce"), ("quota.consumer.default", "fetch"))
    ),
    honoured(
        "quota.window.size.seconds",
        1,
        "Seconds for which a client may save up its quota: a client that was idle may use a window's bytes at once.",
        low=1,
        source="KIP-13",
    ),
    honoured(
        "quota.window.num",
        11,
        "The number of windows for which a client may save up its quota of controller mutations.",
        low=1,
        source="KIP-599",
    ),
)

# -- single listeners --------------------------------------------------------------------------------------------------

LISTENERS = (
    honoured(
        "listener.security.protocol.map",
        [],
        "The security protocol of each listener, as name:PROTOCOL: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. When "
        "one listener has another protocol than PLAINTEXT, every listener must be named, and internal and gateway must "
        "be SSL: they always require certificates of nodes.",
    ),
    honoured(
        "internal.tls.mode",
        "require",
        "For changing an open cluster into a secured cluster without downtime. With allow, the internal listener "
        "(SSL) also "
        "takes unencrypted connections, and the node opens unencrypted connections; with prefer, the node opens "
        "encrypted connections. "
        "Until require, the internal listener trusts every caller, as in an open cluster.",
        choices=("require", "prefer", "allow"),
        source=HEADRACE,
    ),
    honoured(
        "listener.name.*",
        None,
        "A key of TLS or SASL for one listener, such as listener.name.client.ssl.client.auth.",
        kind=Kind.PASSWORD,
    ),
    honoured(
        "http.bearer.tokens.file",
        None,
        "A file with tokens for HTTP (registry, console, /metrics), one a line. A request needs one of them in its "
        "header Authorization, or a client certificate if ssl.client.auth is required. The file is read again when it "
        "changes.",
        source=HEADRACE,
    ),
    accepted(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "The security protocol between brokers.",
        "listener.security.protocol.map sets the protocol of the listener named internal",
    ),
)

#: Keys that listener.name.NAME. may precede.
PER_LISTENER_PREFIXES = ("ssl.", "sasl.")
PER_LISTENER = frozenset({"connections.max.reauth.ms"})
