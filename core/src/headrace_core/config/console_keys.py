"""Configuration keys of the console, the web pages of a cluster."""

from __future__ import annotations

from .definition import HEADRACE, honoured

CONSOLE = (
    honoured(
        "console.listeners",
        ["http://127.0.0.1:9090"],
        "The addresses at which a console serves HTTP, as http://host:port or https://host:port. Port 0 selects a free "
        "port; an empty host means all addresses. Without a sign-in, every client that reaches a listener may use the "
        "console.",
        source=HEADRACE,
    ),
    honoured(
        "console.bootstrap.servers",
        [],
        "host:port of some brokers of the cluster that a console shows.",
        source=HEADRACE,
    ),
    honoured(
        "console.client.config",
        None,
        "The path of a properties file with further client keys of a console, such as request.timeout.ms. With a "
        "security.protocol other than PLAINTEXT, users of the console sign in.",
        source=HEADRACE,
    ),
    honoured(
        "console.sign.in",
        True,
        "Whether users of a console sign in on a secured cluster. With false, every visitor acts as the user of "
        "console.client.config. An open cluster has no sign-in.",
        source=HEADRACE,
    ),
    honoured(
        "console.session.idle.timeout.ms",
        1_800_000,
        "How long a session of the console lasts without an action of its user.",
        low=1_000,
        source=HEADRACE,
    ),
    honoured(
        "console.session.lifetime.ms",
        43_200_000,
        "How long a session of the console lasts at most after its sign-in.",
        low=1_000,
        source=HEADRACE,
    ),
    honoured(
        "console.trusted.proxies",
        [],
        "Addresses or networks of proxies whose X-Forwarded-For header a console believes. The limits of sign-ins then "
        "count the address of the browser.",
        source=HEADRACE,
    ),
    honoured(
        "console.path.prefix",
        "",
        "The path under which a console serves its pages behind a proxy, such as /headrace.",
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
        "Host names by which browsers may address a console, besides localhost and IP addresses. A request with "
        "another name in its Host header is refused, which stops DNS rebinding.",
        source=HEADRACE,
    ),
    honoured(
        "console.schema.registry.url",
        [],
        "URLs of the replicas of a schema registry, with which a console shows subjects and decodes records.",
        source=HEADRACE,
    ),
    honoured(
        "console.cluster.directory",
        None,
        "The directory of a local cluster (headrace up --data). With it a console knows the processes, and names the "
        "command that starts a dead node.",
        source=HEADRACE,
    ),
)
