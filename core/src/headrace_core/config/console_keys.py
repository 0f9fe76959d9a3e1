"""Configuration keys of the console, the web pages of a cluster."""

from __future__ import annotations

from .definition import HEADRACE, honoured

CONSOLE = (
    honoured(
        "console.listeners",
        ["http://127.0.0.1:9090"],
        "The addresses at which a console serves HTTP, as http://host:port or https://host:port. Port 0 selects a free "
        "port; an empty host means all addresses. Without console.sign.in, every client that reaches one of these "
        "addresses may use the console.",
        source=HEADRACE,
    ),
    honoured(
        "console.bootstrap.servers",
        [],
        "The addresses (host:port) of some brokers of the cluster that a console shows.",
        source=HEADRACE,
    ),
    honoured(
        "console.client.config",
        None,
        "The path of a properties file with further keys for the console's connections to the cluster, such as "
        "request.timeout.ms. If the file sets a security.protocol other than PLAINTEXT, users of the console sign in "
        "(console.sign.in).",
        source=HEADRACE,
    ),
    honoured(
        "console.sign.in",
        True,
        "Whether users of a console must sign in if the cluster is secured. With false, every visitor acts with the "
        "credentials in console.client.config. The console of an open cluster never requires a sign-in.",
        source=HEADRACE,
    ),
    honoured(
        "console.session.idle.timeout.ms",
        1_800_000,
        "How long a user of the console stays signed in without a request.",
        low=1_000,
        source=HEADRACE,
    ),
    honoured(
        "console.session.lifetime.ms",
        43_200_000,
        "How long a user of the console stays signed in at most.",
        low=1_000,
        source=HEADRACE,
    ),
    honoured(
        "console.trusted.proxies",
        [],
        "IP addresses or networks of proxies whose X-Forwarded-For header a console trusts. The console then counts "
        "failed sign-ins for the browser's address in this header, not for the proxy's address.",
        source=HEADRACE,
    ),
    honoured(
        "console.path.prefix",
        "",
        "The path prefix of the console's pages behind a proxy, such as /headrace.",
        source=HEADRACE,
    ),
    honoured(
        "console.read.only",
        False,
        "Whether a console refuses every change of the cluster.",
        source=HEADRACE,
    ),
    honoured(
        "console.allowed.hosts",
        [],
        "Further host names by which browsers may address a console; localhost and IP addresses are always allowed. "
        "To prevent DNS rebinding, the console refuses a request with any other name in its Host header.",
        source=HEADRACE,
    ),
    honoured(
        "console.schema.registry.url",
        [],
        "The URLs of a schema registry's replicas. With these URLs, the console shows subjects and decodes records.",
        source=HEADRACE,
    ),
    honoured(
        "console.cluster.directory",
        None,
        "The directory of a local cluster (headrace up --data). With this key, the console shows the processes of the "
        "nodes, and the command that starts a dead node.",
        source=HEADRACE,
    ),
)
