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
        "The keystore: a file with the private key and the certificate chain of this node or client. A PEM keystore "
        "must contain both the key and the chain. Headrace reads the file again when it changes.",
    ),
    honoured("ssl.keystore.password", None, "The password of a PKCS12 keystore.", kind=Kind.PASSWORD),
    honoured(
        "ssl.keystore.certificate.chain",
        None,
        "The certificate chain as PEM text, instead of a file in ssl.keystore.location.",
        kind=Kind.PASSWORD,
        source="KIP-651",
    ),
    honoured(
        "ssl.keystore.key",
        None,
        "The private key of ssl.keystore.certificate.chain as PEM text (PKCS#8).",
        kind=Kind.PASSWORD,
        source="KIP-651",
    ),
    honoured("ssl.key.password", None, "The password of the private key, if the key is encrypted.", kind=Kind.PASSWORD),
    honoured(
        "ssl.truststore.type",
        "PEM",
        "The format of the truststore: PEM or PKCS12 (the default in Kafka is JKS, which Headrace does not read).",
        check=_store_type,
    ),
    honoured(
        "ssl.truststore.location",
        None,
        "The truststore: a file with the certificates of the authorities (CAs) that this node or client trusts. "
        "Headrace reads the file again when it changes.",
    ),
    honoured("ssl.truststore.password", None, "The password of a PKCS12 truststore.", kind=Kind.PASSWORD),
    honoured(
        "ssl.truststore.certificates",
        None,
        "The certificates of the trusted authorities as PEM text, instead of a file in ssl.truststore.location.",
        kind=Kind.PASSWORD,
        source="KIP-651",
    ),
    honoured(
        "ssl.enabled.protocols",
        list(TLS_VERSIONS),
        "The versions of TLS that this node or client offers. gRPC always offers both TLSv1.2 and TLSv1.3; only HTTP "
        "listeners can offer a single version.",
        kind=Kind.LIST,
        check=_versions,
    ),
    honoured(
        "ssl.cipher.suites",
        [],
        "The cipher suites, by their names in Java or OpenSSL; an empty list means gRPC's secure suites. The list "
        "selects suites of TLS 1.2; it must also name the three suites of TLS 1.3, which gRPC always offers. All "
        "connections of a process use one list.",
        kind=Kind.LIST,
    ),
    honoured(
        "ssl.endpoint.identification.algorithm",
        "https",
        "How a client checks the host name or IP address in a server's certificate. gRPC always compares the "
        "certificate with the address to which the client connects, so https is the only value.",
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
    honoured(
        "ssl.ca.location",
        None,
        "A PEM file with the certificates of the trusted authorities (CAs). librdkafka has the same key.",
    ),
    honoured(
        "ssl.certificate.location",
        None,
        "A PEM file with the certificate chain of this node or client. librdkafka has the same key.",
    ),
    honoured(
        "ssl.key.location",
        None,
        "A PEM file with the private key for the certificate in ssl.certificate.location. librdkafka has the same key.",
    ),
)

#: Configuration keys for TLS on servers.
TLS = (
    *_TLS_COMMON,
    *TLS_FILES,
    honoured(
        "ssl.client.auth",
        "none",
        "Whether clients present a certificate: required (they must), requested (they may), or none. Only listeners "
        "for Kafka's clients support requested, because gRPC has no such mode. Internal listeners always require "
        "certificates.",
        choices=("required", "requested", "none"),
    ),
    honoured(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How the distinguished name in a client's certificate becomes the name of a principal. A list of rules, "
        "separated by commas: the first rule whose pattern matches applies. Each rule is RULE:pattern/replacement/, "
        "followed by L (lower case), U (upper case) or nothing; the rule DEFAULT uses the whole distinguished name.",
        source="KIP-371",
    ),
    accepted(
        "ssl.allow.dn.changes",
        False,
        "Whether the certificate in a new keystore may have another distinguished name than the present certificate.",
        "has no effect: a new certificate may have any names that clients and other nodes accept",
    ),
    accepted(
        "ssl.allow.san.changes",
        False,
        "Whether the certificate in a new keystore may lack alternative names (SAN) of the present certificate.",
        "has no effect: a new certificate may have any names that clients and other nodes accept",
    ),
)

#: Configuration keys for TLS on clients.
CLIENT_TLS = (*_TLS_COMMON, *TLS_FILES)

# -- SASL (users, mechanisms, sessions) --------------------------------------------------------------------------------

_KAFKA_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_NO_KINIT = "has no effect: the Kerberos library gets the tickets of a keytab itself; renew a ticket cache with kinit"
_REFRESH = "has no effect: the client gets a new token after 80 % of the lifetime of the present token"


def _kafka_handler(value: Any) -> str | None:
    if not value or str(value).startswith(_KAFKA_OAUTH):
        return None
    return "Headrace cannot load Java classes; leave this key out"


_SERVERS_HAVE_KEYS = "has no effect: a server needs only its keytab, and no tickets"
_NODES_USE_TLS = "has no effect: nodes authenticate each other with certificates"
_NO_ASSERTIONS = (
    "clients do not sign assertions; set sasl.oauthbearer.client.credentials.client.id and .client.secret instead"
)
_SERVERS_VERIFY = "has no effect: servers verify tokens, clients do not"
_ONE_ATTEMPT = "has no effect: an attempt to get a token takes at most 10 s, and the client repeats a failed attempt"

_ASSERTIONS = tuple(
    refused(f"sasl.oauthbearer.assertion.{name}", default, doc, _NO_ASSERTIONS, source="KIP-1139", **more)
    for name, default, doc, more in (
        ("algorithm", "RS256", "The algorithm that signs an assertion.", {}),
        ("claim.aud", None, "The value of the claim aud in an assertion.", {}),
        ("claim.exp.seconds", 300, "How long an assertion is valid.", {}),
        ("claim.iss", None, "The value of the claim iss in an assertion.", {}),
        ("claim.jti.include", False, "Whether an assertion has the claim jti (an id).", {}),
        ("claim.nbf.seconds", 60, "By how many seconds an assertion's validity begins before the present time.", {}),
        ("claim.sub", None, "The value of the claim sub in an assertion.", {}),
        ("file", None, "A file with a ready-made assertion.", {}),
        ("private.key.file", None, "The file with the key that signs assertions.", {}),
        ("private.key.passphrase", None, "The password of the key that signs assertions.", {"kind": Kind.PASSWORD}),
        ("template.file", None, "A file with a template of assertions: their headers and further claims.", {}),
    )
)

_OAUTH_COMMON = (
    *_ASSERTIONS,
    *(
        accepted(
            f"sasl.oauthbearer.jwt.{name}.class",
            f"{_KAFKA_OAUTH}DefaultJwt{name.title()}",
            doc,
            "has no effect: you may leave this key set to one of Kafka's own classes",
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
            ("connect.timeout.ms", Kind.INT, None, "How long opening a connection to the token endpoint may take."),
            ("read.timeout.ms", Kind.INT, None, "How long the client waits for an answer of the token endpoint."),
            ("retry.backoff.ms", Kind.LONG, 100, "The pause after the first failed attempt to get a token."),
            ("retry.backoff.max.ms", Kind.LONG, 10_000, "The longest pause after failed attempts to get a token."),
        )
    ),
    honoured(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        "The name of the claim that contains a token's scopes, as a list or as a text with spaces between the scopes.",
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        "The name of the claim that contains the user's name.",
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
        "the client gets tokens without a Java class; you may leave this key set to one of Kafka's own classes for "
        "OAUTHBEARER",
        check=_kafka_handler,
        source="KIP-86",
    ),
    refused("sasl.login.class", None, "The Java class of the login.", _JAVA, source="KIP-86"),
    *(
        accepted(f"sasl.login.refresh.{name}", default, doc, _REFRESH, source="KIP-368")
        for name, default, doc in (
            ("window.factor", 0.8, "The share of a token's lifetime after which the client renews the token."),
            (
                "window.jitter",
                0.05,
                "The largest random share of a token's lifetime that the client adds to "
                "sasl.login.refresh.window.factor.",
            ),
            ("min.period.seconds", 60, "The shortest time between two renewals of a token."),
            (
                "buffer.seconds",
                300,
                "How many seconds before a token expires the client renews the token at the latest.",
            ),
        )
    ),
)

_KERBEROS_COMMON = (
    accepted("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "The path of kinit.", _NO_KINIT),
    accepted(
        "sasl.kerberos.min.time.before.relogin",
        60_000,
        "The shortest time between two logins of a client.",
        _NO_KINIT,
        kind=Kind.LONG,
    ),
)

#: Configuration keys for GSSAPI on clients.
_KERBEROS_CLIENT = (
    *_KERBEROS_COMMON,
    honoured(
        "sasl.kerberos.service.name",
        None,
        "The first part of the servers' principals in Kerberos, such as kafka in kafka/HOST@REALM. GSSAPI needs this "
        "key, or the option serviceName in sasl.jaas.config.",
    ),
    honoured(
        "sasl.kerberos.ticket.renew.window.factor",
        0.8,
        "The share of a session's lifetime after which a client with GSSAPI authenticates again.",
        low=0.1,
        high=1,
    ),
    honoured(
        "sasl.kerberos.ticket.renew.jitter",
        0.05,
        "The largest random share of a session's lifetime that the client adds to "
        "sasl.kerberos.ticket.renew.window.factor.",
        low=0,
        high=0.25,
    ),
    honoured(
        "sasl.kerberos.keytab",
        None,
        "The path of this client's keytab. Without a keytab, the client uses the ticket cache that kinit fills. "
        "librdkafka has the same key.",
    ),
    honoured(
        "sasl.kerberos.principal",
        None,
        "The principal of this client in Kerberos, such as alice@EXAMPLE.COM; required with sasl.kerberos.keytab. "
        "librdkafka has the same key.",
    ),
)

#: Configuration keys for GSSAPI on servers.
_KERBEROS_SERVER = (
    *_KERBEROS_COMMON,
    honoured(
        "sasl.kerberos.service.name",
        None,
        "The first part of the listener's principal in Kerberos, such as kafka. You may leave this key out; a value "
        "must equal the first part of the principal in sasl.jaas.config.",
    ),
    *(
        accepted(f"sasl.kerberos.ticket.renew.{name}", default, doc, _SERVERS_HAVE_KEYS)
        for name, default, doc in (
            ("window.factor", 0.8, "The share of a ticket's lifetime after which the server renews the ticket."),
            (
                "jitter",
                0.05,
                "The largest random share of a ticket's lifetime that the server adds to "
                "sasl.kerberos.ticket.renew.window.factor.",
            ),
        )
    ),
    honoured(
        "sasl.kerberos.principal.to.local.rules",
        ["DEFAULT"],
        "How the name of a Kerberos principal becomes a user's name. A list of rules in Kafka's syntax (RULE:…), "
        "separated by commas: the first rule that matches applies. The rule DEFAULT takes the first part of a name in "
        "the default realm.",
        kind=Kind.LIST,
    ),
)

#: Configuration keys for the verification of OAUTHBEARER tokens on servers.
_VERIFICATION = (
    honoured(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        "The URL (https: or file:) of the public keys (JWKS) with which the server verifies the tokens of OAUTHBEARER.",
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "How often the server reads the keys of sasl.oauthbearer.jwks.endpoint.url again. The server reads a file "
        "again after at most 10 s.",
        kind=Kind.LONG,
        low=1_000,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        "The pause after the first failed read of sasl.oauthbearer.jwks.endpoint.url.",
        kind=Kind.LONG,
        low=1,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        "The longest pause after failed reads of sasl.oauthbearer.jwks.endpoint.url.",
        kind=Kind.LONG,
        low=1,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.expected.audience",
        [],
        "The audiences of which a token must name at least one. With an empty list, a token may have any audience.",
        kind=Kind.LIST,
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.expected.issuer",
        None,
        "The issuer that a token must name. Without a value, a token may have any issuer.",
        source="KIP-768",
    ),
    honoured(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "By how many seconds the clock of the tokens' issuer may differ from this server's clock.",
        low=0,
        high=3_600,
        source="KIP-768",
    ),
)

#: The mechanisms of SASL that a listener may offer.
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

#: Keys without effect. Kafka can change these keys on a running broker, so a broker of Headrace accepts a change, too.
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


#: Configuration keys for SASL on servers. ``listener.name.NAME.MECHANISM.sasl.jaas.config`` has priority over
#: sasl.jaas.config.
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
        "The login module of a mechanism, with its options. PlainLoginModule: options user_NAME=PASSWORD are a fixed "
        "list of users; without these options, PLAIN uses the SCRAM users in the metadata. Krb5LoginModule: needs the "
        "options useKeyTab=true, keyTab and principal.",
        kind=Kind.PASSWORD,
    ),
    *_KERBEROS_SERVER,
    *_VERIFICATION,
    honoured(
        "sasl.oauthbearer.expected.scope",
        [],
        "The scopes that a token must have; a token that lacks one of them is refused.",
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
    accepted(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "The SASL mechanism that brokers use to authenticate with each other.",
        _NODES_USE_TLS,
    ),
    accepted(
        "sasl.mechanism.controller.protocol",
        "GSSAPI",
        "The SASL mechanism that controllers use to authenticate with each other.",
        _NODES_USE_TLS,
    ),
    *(
        accepted(f"sasl.oauthbearer.{name}", None, doc, _NODES_USE_TLS, source=source, **more)
        for name, doc, source, more in (
            ("token.endpoint.url", "The URL at which a node gets tokens.", "KIP-768", {}),
            ("scope", "The scope that a node requests at the token endpoint.", "KIP-1139", {}),
            ("client.credentials.client.id", "The client id of a node for the token endpoint.", "KIP-1139", {}),
            (
                "client.credentials.client.secret",
                "The client secret of a node for the token endpoint.",
                "KIP-1139",
                {"kind": Kind.PASSWORD},
            ),
        )
    ),
    refused("sasl.client.callback.handler.class", None, "The Java class of a client's callbacks.", _JAVA),
    accepted(
        "sasl.server.callback.handler.class",
        None,
        "The Java class that checks credentials.",
        "servers check credentials without a Java class; you may leave this key set to one of Kafka's own classes for "
        "OAUTHBEARER",
        check=_kafka_handler,
        source="KIP-86",
    ),
    honoured(
        "connections.max.reauth.ms",
        0,
        "The time after which a client must authenticate again; 0 means never. A session also ends when the token or "
        "ticket with which the client authenticated expires.",
        kind=Kind.LONG,
        low=0,
        source="KIP-368",
    ),
    honoured(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a server delays its answer to a failed authentication.",
        low=0,
        high=10_000,
        source="KIP-306",
    ),
)
SASL: tuple[ConfigKey, ...] = tuple(map(_altered_per_broker, _SASL))

#: Configuration keys for SASL on clients.
CLIENT_SASL: tuple[ConfigKey, ...] = (
    honoured(
        "sasl.mechanism",
        "GSSAPI",
        "The SASL mechanism of this client. The default, GSSAPI (Kerberos), needs sasl.kerberos.service.name.",
        choices=SASL_MECHANISMS,
    ),
    honoured("sasl.mechanisms", None, "Another name for sasl.mechanism, from librdkafka.", choices=SASL_MECHANISMS),
    honoured(
        "sasl.username",
        None,
        "The user name of this client for PLAIN and SCRAM. librdkafka has the same key.",
    ),
    honoured(
        "sasl.password",
        None,
        "The password of this client for PLAIN and SCRAM. In the value, ${env:NAME} stands for the environment "
        "variable NAME, and ${file:PATH} for the content of the file PATH. librdkafka has the same key.",
        kind=Kind.PASSWORD,
    ),
    honoured(
        "sasl.jaas.config",
        None,
        "The login module with its options, as for Kafka's Java clients: PlainLoginModule, ScramLoginModule, "
        "OAuthBearerLoginModule or Krb5LoginModule. In options, ${env:NAME} stands for the environment variable NAME, "
        "and ${file:PATH} for the content of the file PATH.",
        kind=Kind.PASSWORD,
    ),
    honoured(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "The URL at which the client gets a token for its client id and client secret (RFC 6749, section 4.4). With "
        "file:PATH, the client reads its token from the file PATH.",
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
            (
                "sasl.oauthbearer.client.id",
                "Another name for sasl.oauthbearer.client.credentials.client.id, from librdkafka.",
                "librdkafka",
                {},
            ),
            (
                "sasl.oauthbearer.client.secret",
                "Another name for sasl.oauthbearer.client.credentials.client.secret, from librdkafka.",
                "librdkafka",
                {"kind": Kind.PASSWORD},
            ),
            ("sasl.oauthbearer.scope", "The scope that the client requests at the token endpoint.", "KIP-1139", {}),
            (
                "sasl.oauthbearer.extensions",
                "SASL extensions that the client sends with its token, as name=value pairs with commas between them.",
                "librdkafka",
                {"kind": Kind.LIST},
            ),
            (
                "sasl.oauthbearer.token",
                "A token that the client uses instead of requesting one at a token endpoint.",
                HEADRACE,
                {"kind": Kind.PASSWORD},
            ),
        )
    ),
    honoured(
        "oauth.cb",
        None,
        "A function that returns a token and its time of expiry, as in confluent-kafka: oauth_cb(config) -> (token, "
        "seconds since 1970).",
        kind=Kind.CLASS,
        source="Confluent",
    ),
    *_KERBEROS_CLIENT,
    accepted(
        "sasl.oauthbearer.method",
        "oidc",
        "The method by which librdkafka gets tokens.",
        "the other keys sasl.oauthbearer.* that you set determine the method",
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
        "The secret from which the cluster derives the passwords of delegation tokens; every node must have the same "
        "secret. Without this key, clients cannot create delegation tokens. In the value, ${env:NAME} stands for the "
        "environment variable NAME, and ${file:PATH} for the content of the file PATH.",
        kind=Kind.PASSWORD,
        source="KIP-48",
    ),
    honoured(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        "The longest lifetime of a delegation token in milliseconds; renewals do not extend it.",
        kind=Kind.LONG,
        low=1,
        source="KIP-48",
    ),
    honoured(
        "delegation.token.expiry.time.ms",
        86_400_000,
        "How long a delegation token is valid after its creation or its last renewal.",
        kind=Kind.LONG,
        low=1,
        source="KIP-48",
    ),
    honoured(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        "How often the controller removes expired delegation tokens.",
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
        "With StandardAuthorizer (or the full name of Kafka's class), callers may do what access control entries "
        "allow (`headrace acls`). With an empty value, every authenticated caller may do everything. Set the same "
        "value on every node.",
        check=_authorizer,
        source="KIP-11",
    ),
    honoured(
        "super.users",
        "",
        "The principals that may do everything, with semicolons between them, such as User:admin;User:CN=ops.",
        source="KIP-11",
    ),
    honoured(
        "allow.everyone.if.no.acl.found",
        False,
        "Whether every caller may use a resource that has no access control entry.",
        source="KIP-11",
    ),
    honoured(
        "audit.log.path",
        None,
        "The file of the audit log. The node writes a line of JSON for each refused access or login, and for a sample "
        "of the allowed accesses. Without a value, the node writes no audit log. Each node needs a separate file.",
        source=HEADRACE,
    ),
    honoured(
        "audit.log.max.bytes",
        64 * 1024 * 1024,
        "The size in bytes at which a node begins a new file of the audit log.",
        low=64 * 1024,
        source=HEADRACE,
    ),
    honoured(
        "audit.log.files", 4, "How many older files of the audit log a node keeps.", low=1, high=1_000, source=HEADRACE
    ),
    honoured(
        "audit.log.allowed.sample",
        0,
        "With 100, the audit log has one of every 100 allowed accesses; 1 means all allowed accesses, 0 means none.",
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
        "The length of a quota's window in seconds. A client that was idle may use the bytes of one window at once.",
        low=1,
        source="KIP-13",
    ),
    honoured(
        "quota.window.num",
        11,
        "A client that was idle may use the controller mutations of quota.window.num windows "
        "(quota.window.size.seconds) at once.",
        low=1,
        source="KIP-599",
    ),
)

# -- single listeners --------------------------------------------------------------------------------------------------

LISTENERS = (
    honoured(
        "listener.security.protocol.map",
        [],
        "The security protocol of each listener, as name:PROTOCOL; PROTOCOL is PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL. If one listener has another protocol than PLAINTEXT, the list must name every listener. The "
        "listener internal must then have SSL, and always requires certificates of nodes.",
    ),
    honoured(
        "internal.tls.mode",
        "require",
        "Use allow, then prefer, then require to turn an open cluster into a secured cluster without downtime. With "
        "allow and prefer, the internal listener (SSL) also accepts unencrypted connections, and trusts every caller "
        "as in an open cluster. With allow the node itself opens unencrypted connections to other nodes, with prefer "
        "and require encrypted connections.",
        choices=("require", "prefer", "allow"),
        source=HEADRACE,
    ),
    honoured(
        "listener.name.*",
        None,
        "A key of TLS or SASL for a single listener, such as listener.name.client.ssl.client.auth for the listener "
        "named client.",
        kind=Kind.PASSWORD,
    ),
    honoured(
        "http.bearer.tokens.file",
        None,
        "A file with bearer tokens for HTTP requests to a registry, a console or /metrics, one token on each line. A "
        "request needs one of these tokens in its Authorization header, or a client certificate if "
        "ssl.client.auth=required. Headrace reads the file again when it changes.",
        source=HEADRACE,
    ),
    accepted(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "The security protocol between brokers.",
        "listener.security.protocol.map sets the protocol of the listener named internal",
    ),
)

#: A key that begins with one of these texts can be set for one listener, as listener.name.NAME.KEY.
PER_LISTENER_PREFIXES = ("ssl.", "sasl.")
PER_LISTENER = frozenset({"connections.max.reauth.ms"})
