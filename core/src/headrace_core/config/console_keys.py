"""Configuration keys of the console, the web pages of a cluster."""

from __future__ import annotations

from .definition import HEADRACE, honoured

CONSOLE = (
    honoured(
        "console.listeners",
        ["http://127.0.0.1:9090"],
        "The addresses at which a console serves HTTP, as http://host:port. Port 0 selects a free port; an empty host "
        "means all addresses. Every client that reaches a listener may use the console.",
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
        "The path of a properties file with further client keys of a console, such as request.timeout.ms.",
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
