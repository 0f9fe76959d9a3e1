"""Tasks of Spark log in with a delegation token of the driver: their processes never have the driver's password."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, Producer, ScramMechanism, UserScramCredentialUpsertion
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(240)

ROOT_PASSWORD = "r00t-of-the-cluster"
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_root="{ROOT_PASSWORD}";'
PASSWORD = f"pl4nted-{secrets.token_hex(16)}"
#: A token lasts so long, and a renewed one no longer than the last figure: a query of half a minute has several.
LIFE_MS, LIFE_MS_MAX = 8_000, 12_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {
        "super.users": "User:root;User:etl",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": PLAIN,
        "delegation.token.expiry.time.ms": str(LIFE_MS),
        "delegation.token.max.lifetime.ms": str(LIFE_MS_MAX),
        "delegation.token.expiry.check.interval.ms": "500",
    }
    few: dict[str, Any] = {"brokers": 2, "controllers": 1, "coordinators": 1, "mode": "inprocess"}
    with LocalCluster(**few, secure=True, config=config) as running:
        with Admin(login(running, "PLAIN", "root", ROOT_PASSWORD)) as root:
            root.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("etl", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
            )
            root.create_topics(["in", "out", "batch"])
        yield running


def login(cluster: LocalCluster, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.directory / "security" / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def options(cluster: LocalCluster, **more: str) -> dict[str, str]:
    keys = login(cluster, "SCRAM-SHA-512", "etl", PASSWORD)
    return {f"kafka.{name}": value for name, value in keys.items()} | more


WITH_TOKENS = {"headrace.delegation.token.enabled": "true"}


def workers() -> list[int]:
    """The Python processes of Spark's tasks that descend from this process."""
    parents, found = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if (path / "cmdline").read_bytes().rstrip(b"\0").endswith(b"pyspark.worker"):
                found.append(int(path.name))
        except OSError:
            continue  # the process has ended
    return [pid for pid in found if os.getpid() in ancestors(pid, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while (pid := parents.get(pid, 0)) > 1:
        yield pid


def in_memory_of_workers(*wanted: str) -> set[str]:
    """Which of the texts are in the memory of some worker."""
    found: set[str] = set()
    for pid in workers():
        try:
            with open(f"/proc/{pid}/mem", "rb") as memory:
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    where, rights = line.split()[:2]
                    if rights.startswith("rw"):
                        found |= {each for each in wanted if each.encode() in _region(memory, where)}
        except OSError:
            continue  # the process has ended
    return found


def _region(memory: Any, where: str) -> bytes:
    start, end = (int(each, 16) for each in where.split("-"))
    try:
        memory.seek(start)
        data: bytes = memory.read(end - start)
    except (OSError, OverflowError, ValueError):
        return b""
    return data


def tokens(cluster: LocalCluster) -> set[str]:
    with Admin(login(cluster, "SCRAM-SHA-512", "etl", PASSWORD)) as admin:
        return {each.token_id for each in admin.describe_delegation_token()}


def test_tasks_get_tokens_and_never_the_password(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    given = options(cluster, **WITH_TOKENS)
    rows = spark.range(100).selectExpr("cast(cast(id as string) as binary) as value")
    rows.write.format("headrace").options(**given).option("topic", "batch").mode("append").save()
    early = tokens(cluster)  # one, or on a slow machine also its successor
    read = spark.read.format("headrace").options(**given).option("subscribe", "batch").load()
    assert sorted(int(row.value) for row in read.collect()) == list(range(100))

    early |= tokens(cluster)
    found = in_memory_of_workers(PASSWORD, *early)
    assert found, "no task had a token"
    assert PASSWORD not in found

    stream = spark.readStream.format("headrace").options(**given).option("subscribe", "in")
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .writeStream.format("headrace")
        .options(**given)
        .option("topic", "out")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    plain = login(cluster, "PLAIN", "root", ROOT_PASSWORD)
    used = set(early)
    try:
        with (
            Producer(plain) as producer,
            Consumer({**plain, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer,
        ):
            consumer.subscribe(["out"])
            for number in itertools.count():
                producer.send("in", value=str(number).encode()).result(timeout=30)
                (record,) = until(lambda: consumer.poll(timeout=0.5), "the query has copied the record", 60)
                assert record.value == str(number).encode()
                present = tokens(cluster)
                used |= present
                if len(used) >= len(early) + 2 and not early & present:  # replaced twice, and the first have expired
                    break
        assert query.exception() is None
    finally:
        query.stop()
    found = in_memory_of_workers(PASSWORD, *used)
    assert PASSWORD not in found
    assert found - early, "no task had a later token"

    # The search finds what is there: without the option, tasks log in as the driver does.
    spark.read.format("headrace").options(**options(cluster)).option("subscribe", "batch").load().collect()
    assert PASSWORD in in_memory_of_workers(PASSWORD)
