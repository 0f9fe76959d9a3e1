"""A broker that runs out of file descriptors hands its leaderships over, and leads again when it has free
descriptors."""

from __future__ import annotations

import resource
import socket

from headrace import Admin, LocalCluster, NewTopic, Producer
from tests.worlds.waiting import until

TIMEOUT_S = 60
TOPIC = "orders"


def test_broker_without_descriptors_leads_nothing_and_comes_back() -> None:
    with (
        LocalCluster(brokers=3, controllers=1, coordinators=0) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        admin.create_topics([NewTopic(TOPIC, partitions=3, replication_factor=3)])

        def leaders() -> set[int]:
            (topic,) = admin.describe_topics([TOPIC])
            return {partition.leader for partition in topic.partitions}

        until(lambda: len(leaders()) == 3, "every broker leads one partition")
        victim = min(leaders())
        node = next(each for each in cluster.ps() if each["role"] == "broker" and each["id"] == victim)
        limits = resource.prlimit(node["pid"], resource.RLIMIT_NOFILE)
        host, _, port = node["address"].rpartition(":")
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            try:
                resource.prlimit(node["pid"], resource.RLIMIT_NOFILE, (40, limits[1]))
                until(lambda: victim not in leaders(), "the others lead")
                for number in range(30):
                    producer.send(TOPIC, b"%d" % number, partition=number % 3).result(TIMEOUT_S)
            finally:
                resource.prlimit(node["pid"], resource.RLIMIT_NOFILE, limits)
        until(
            lambda: socket.create_connection((host, int(port)), timeout=5).close() is None,
            "the broker accepts again",
        )

        def leads_again() -> bool:
            admin.elect_leaders()  # preferred leader: it gets its partition back after it has reported that it can lead
            return victim in leaders()

        until(leads_again, "it leads again")
