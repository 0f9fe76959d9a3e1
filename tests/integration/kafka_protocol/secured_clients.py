"""confluent-kafka, aiokafka, kafka-python and franz-go as clients of a secured broker: one record there and back, and
what each library raises for wrong credentials."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.integration.kafka_protocol.go_programs import go_programs

WITHIN_S = 30.0


@dataclass(frozen=True)
class Login:
    """How a client authenticates. ``certificate``: a PEM file with key and certificate; ``ca``: the authority's."""

    ca: str
    mechanism: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    certificate: str | None = None


def unsecured_token(user: str, lifetime_s: int = 3_600) -> str:
    """A JWT without a signature, for a listener that takes such tokens."""

    def part(value: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = int(time.time())
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now, 'exp': now + lifetime_s})}."


def context(login: Login) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=login.ca)
    if login.certificate:
        made.load_cert_chain(login.certificate)
    return made


# -- confluent-kafka (librdkafka)


def confluent_config(bootstrap: str, login: Login) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL" if login.mechanism else "SSL",
        "ssl.ca.location": login.ca,
    }
    if login.certificate:
        config |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.certificate}
    if login.mechanism == "OAUTHBEARER":
        token = unsecured_token(login.user)
        config["oauth_cb"] = lambda _: (token, time.time() + 3_600)
    elif login.mechanism:
        config |= {"sasl.username": login.user, "sasl.password": login.password}
    if login.mechanism:
        config["sasl.mechanism"] = login.mechanism
    return config


def confluent(bootstrap: str, login: Login, topic: str) -> bytes | None:
    import confluent_kafka as ck

    config = confluent_config(bootstrap, login)
    producer = ck.Producer(config)
    delivered: list[Any] = []
    producer.produce(topic, b"confluent", on_delivery=lambda error, message: delivered.append(error or message))
    assert producer.flush(WITHIN_S) == 0, "not delivered"
    message = delivered[0]
    assert not isinstance(message, ck.KafkaError), message
    consumer = ck.Consumer({**config, "group.id": "secured", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([ck.TopicPartition(topic, message.partition(), message.offset())])
        found = consumer.poll(WITHIN_S)
        return None if found is None else found.value()
    finally:
        consumer.close()


def confluent_refused(bootstrap: str, login: Login) -> str:
    """The error that librdkafka reports."""
    import confluent_kafka as ck

    seen: list[ck.KafkaError] = []
    producer = ck.Producer({**confluent_config(bootstrap, login), "error_cb": seen.append})
    deadline = time.monotonic() + WITHIN_S
    while not seen and time.monotonic() < deadline:
        producer.poll(0.1)
    return "; ".join(f"{each.name()}: {each.str()}" for each in seen)


# -- kafka-python


def kafka_python_config(bootstrap: str, login: Login) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL" if login.mechanism else "SSL",
        "ssl_context": context(login),
    }
    if login.mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return unsecured_token(login.user)

        config["sasl_oauth_token_provider"] = Provider()
    elif login.mechanism:
        config |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    if login.mechanism:
        config["sasl_mechanism"] = login.mechanism
    return config


def kafka_python(bootstrap: str, login: Login, topic: str) -> bytes | None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    config = kafka_python_config(bootstrap, login)
    producer = KafkaProducer(**config)
    try:
        sent = producer.send(topic, b"kafka-python").get(WITHIN_S)
    finally:
        producer.close(5)
    consumer = KafkaConsumer(**config, enable_auto_commit=False)
    try:
        place = TopicPartition(topic, sent.partition)
        consumer.assign([place])
        consumer.seek(place, sent.offset)
        for records in consumer.poll(WITHIN_S * 1_000).values():
            return bytes(records[0].value)
        return None
    finally:
        consumer.close()


def kafka_python_refused(bootstrap: str, login: Login) -> str:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    with _logged("kafka") as logged:
        try:
            KafkaAdminClient(**kafka_python_config(bootstrap, login), bootstrap_timeout_ms=5_000).close()
        except KafkaError as error:
            logged.append(f"{type(error).__name__}: {error}")
    return "; ".join(logged)


# -- aiokafka


def aiokafka_config(bootstrap: str, login: Login) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL" if login.mechanism else "SSL",
        "ssl_context": context(login),
    }
    if login.mechanism == "OAUTHBEARER":
        from aiokafka.abc import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            async def token(self) -> str:
                return unsecured_token(login.user)

        config["sasl_oauth_token_provider"] = Provider()
    elif login.mechanism:
        config |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    if login.mechanism:
        config["sasl_mechanism"] = login.mechanism
    return config


def aiokafka(bootstrap: str, login: Login, topic: str) -> bytes | None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.structs import TopicPartition

    async def run() -> bytes | None:
        config = aiokafka_config(bootstrap, login)
        async with AIOKafkaProducer(**config) as producer:
            sent = await producer.send_and_wait(topic, b"aiokafka")
        consumer = AIOKafkaConsumer(**config, enable_auto_commit=False)
        place = TopicPartition(topic, sent.partition)
        consumer.assign([place])
        async with consumer:
            consumer.seek(place, sent.offset)
            async with asyncio.timeout(WITHIN_S):
                return bytes((await consumer.getone()).value)

    return asyncio.run(run())


def aiokafka_refused(bootstrap: str, login: Login) -> str:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaConnectionError

    async def run(logged: list[str]) -> None:
        producer = AIOKafkaProducer(**aiokafka_config(bootstrap, login))
        try:
            await producer.start()
        except KafkaConnectionError as error:
            logged.append(f"{type(error).__name__}: {error}")
        finally:
            await producer.stop()

    with _logged("aiokafka") as logged:
        asyncio.run(run(logged))
    return "; ".join(logged)


@contextlib.contextmanager
def _logged(name: str) -> Iterator[list[str]]:
    """What a library logs: it raises only that it cannot connect, and logs why."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    keep = Keep()
    logging.getLogger(name).addHandler(keep)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(keep)


# -- franz-go


def _franz_go(bootstrap: str, login: Login, topic: str) -> subprocess.CompletedProcess[str]:
    if login.mechanism is None:
        words = ["CERTIFICATE", login.certificate or ""]
    elif login.mechanism == "OAUTHBEARER":
        words = [login.mechanism, unsecured_token(login.user)]
    else:
        words = [login.mechanism, login.user, login.password]
    command = [str(go_programs() / "secured"), bootstrap, login.ca, topic, "franz-go", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * WITHIN_S)


def franz_go(bootstrap: str, login: Login, topic: str) -> bytes | None:
    done = _franz_go(bootstrap, login, topic)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().encode()


def franz_go_refused(bootstrap: str, login: Login) -> str:
    """What the program prints before it ends with exit code 1."""
    done = _franz_go(bootstrap, login, "any")
    assert done.returncode == 1, done.stdout
    return done.stderr


#: By library: a record there and back, and the error for wrong credentials.
LIBRARIES: dict[str, tuple[Callable[[str, Login, str], bytes | None], Callable[[str, Login], str]]] = {
    "confluent-kafka": (confluent, confluent_refused),
    "kafka-python": (kafka_python, kafka_python_refused),
    "aiokafka": (aiokafka, aiokafka_refused),
    "franz-go": (franz_go, franz_go_refused),
}
