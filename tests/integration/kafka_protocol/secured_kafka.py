"""A real Kafka broker with StandardAuthorizer and SASL, for comparisons with ours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.integration.interop.kafka_peer import KafkaBroker
from tests.worlds.this_process import free_port


class SecuredKafka(KafkaBroker):
    """``secured``: host:port of a listener with SASL_PLAINTEXT, where ``users`` authenticate by PLAIN with
    ``password``; the first one is a super user."""

    def __init__(self, directory: Path, users: Iterable[str], password: str, **keys: str) -> None:
        """``keys``: more of the broker's configuration, with _ for dots."""
        super().__init__(directory)
        names = list(users)
        port = free_port()
        self.secured = f"127.0.0.1:{port}"
        self._ports.append(port)
        known = " ".join(f'user_{name}="{password}"' for name in names)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        old = self._config.read_text()
        listeners = next(line for line in old.splitlines() if line.startswith("listeners="))
        advertised = next(line for line in old.splitlines() if line.startswith("advertised.listeners="))
        more = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {known};",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config":
                "org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config":
                "org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{names[0]};User:ANONYMOUS",
            **{name.replace("_", "."): value for name, value in keys.items()},
        }  # fmt: skip
        extended = f"{listeners},SASL_PLAINTEXT://{self.secured}\n{advertised},SASL_PLAINTEXT://{self.secured}\n"
        self._config.write_text(old + extended + "".join(f"{key}={value}\n" for key, value in more.items()))
