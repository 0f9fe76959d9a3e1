"""kcat 1.7 (librdkafka 2.0, Debian's package), unchanged, against a broker."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, LocalCluster, NewTopic
from tests.worlds.kafka_protocol import topic_name
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(180)
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True, mode="process") as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = topic_name(request)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS, replication_factor=3)])
    return name


def kcat(cluster: LocalCluster, *arguments: str, stdin: str = "") -> str:
    """Run kcat to its end; returns what it prints."""
    command = ["kcat", "-b", cluster.kafka_bootstrap_servers, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def produce(cluster: LocalCluster, topic: str, numbers: range, *options: str) -> None:
    lines = "".join(f"k{number % 17}:v{number}\n" for number in numbers)
    kcat(cluster, "-P", "-t", topic, "-K", ":", *options, stdin=lines)


def read(cluster: LocalCluster, topic: str, *options: str) -> list[str]:
    """All records, each as "partition offset key value"."""
    printed = kcat(cluster, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%p %o %k %s\n", *options)
    return printed.splitlines()


def values(lines: list[str]) -> list[int]:
    return sorted(int(line.rsplit("v", 1)[1]) for line in lines)


def test_it_lists_brokers_topics_and_partitions(cluster: LocalCluster, topic: str) -> None:
    found = json.loads(kcat(cluster, "-L", "-J", "-t", topic))
    assert [each["id"] for each in found["brokers"]] == [1, 2, 3]
    (described,) = found["topics"]
    assert len(described["partitions"]) == PARTITIONS
    assert all(sorted(isr["id"] for isr in each["isrs"]) == [1, 2, 3] for each in described["partitions"])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_it_reads_what_it_wrote(cluster: LocalCluster, topic: str, codec: str) -> None:
    produce(cluster, topic, range(2_000), "-z", codec)
    found = read(cluster, topic)
    assert values(found) == [*range(2_000)]
    by_key: dict[str, list[int]] = {}
    for line in found:
        key, value = line.split()[2:]
        by_key.setdefault(key, []).append(int(value[1:]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "the order of a key's records"


def test_it_finds_offsets_by_time(cluster: LocalCluster, topic: str) -> None:
    produce(cluster, topic, range(100), "-p", "2")
    assert kcat(cluster, "-Q", "-t", f"{topic}:2:0").split() == [topic, "[2]", "offset", "0"]
    assert kcat(cluster, "-Q", "-t", f"{topic}:2:-1").split() == [topic, "[2]", "offset", "100"]


def test_it_writes_in_a_transaction(cluster: LocalCluster, topic: str) -> None:
    produce(cluster, topic, range(500), "-X", f"transactional.id={topic}")
    assert values(read(cluster, topic, "-X", "isolation.level=read_committed")) == [*range(500)]


class Member:
    """A kcat in a group, which prints each record's partition, offset, key and value to a file."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, path: Path) -> None:
        self.path = path
        command = [
            *("kcat", "-b", cluster.kafka_bootstrap_servers, "-G", group, "-u", "-q", "-f", "%p %o %k %s\n"),
            *("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000", "-X", "auto.commit.interval.ms=200"),
            topic,
        ]
        with path.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def lines(self) -> list[str]:
        """Whole lines; the last one of a killed member may be cut."""
        text = self.path.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    def end(self, *, kill: bool = False) -> None:
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait(30)


def test_a_group_of_three_goes_on_when_one_is_killed(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(3):
            member = Member(cluster, topic, f"group-of-{topic}", tmp_path / f"member-{number}")
            stack.callback(member.end)
            members.append(member)

        def partitions(member: Member, beyond: int) -> set[str]:
            return {line.split()[0] for line in member.lines() if int(line.rsplit("v", 1)[1]) >= beyond}

        sent = 0

        def all_three_read() -> bool:
            nonlocal sent
            produce(cluster, topic, range(sent, sent + 170))
            sent += 170
            return all(len(partitions(each, sent - 340)) == PARTITIONS // 3 for each in members)

        until(all_three_read, within_s=60, pause_s=0.2)
        victim = members[0]
        victim.end(kill=True)
        produce(cluster, topic, range(sent, sent + 1_000))
        sent += 1_000
        lines = until(
            lambda: (
                (found := [line for each in members for line in each.lines()])
                and len({line.rsplit("v", 1)[1] for line in found}) == sent
                and found
            ),
            within_s=60,
            pause_s=0.2,
        )
    assert sorted({int(line.rsplit("v", 1)[1]) for line in lines}) == [*range(sent)]
    own = set(victim.lines())
    twice = {line for line, count in Counter(lines).items() if count > 1}
    assert twice <= own, "only records that the killed member had not yet committed may be read twice"
