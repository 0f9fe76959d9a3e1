"""Headrace's side of the benchmarks: a cluster, and workloads through `headrace bench` or our_clients.py."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import echo
import our_clients
from measure import (
    FAILURES,
    PYTHON,
    REMOVAL_DELAY_MS,
    Samples,
    peak_rss_mib,
    rss_mib,
    run_json,
    wait_for_removal,
)

from headrace import Admin, LocalCluster, NewTopic, Producer

PARTITIONS, REPLICAS = 6, 3
UNBATCHED_BYTES = 170  #: Size of a batch with one record of 100 bytes, for gRPC's limit of unbatched records.
PRODUCE_APIS = ("arrow", "many", "object", "async")
CONSUME_APIS = ("arrow", "object", "async")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Records per workload: enough for a run of some seconds."""

    arrow: int
    many: int
    object: int
    asynchronous: int
    seconds: float  # duration of the workloads with a fixed time
    echo_bytes: tuple[int, ...]

    def records(self, api: str) -> int:
        return self.asynchronous if api == "async" else int(getattr(self, api))


FULL = Sizes(
    arrow=20_000_000,
    many=15_000_000,
    object=10_000_000,
    asynchronous=5_000_000,
    seconds=5.0,
    echo_bytes=(262_144, 1 << 20),
)
SMOKE = Sizes(arrow=200_000, many=100_000, object=50_000, asynchronous=20_000, seconds=1.0, echo_bytes=(262_144,))


class Headrace:
    """A cluster with production defaults, one broker and one controller by default; topics choose ``log.flush``, and
    have three replicas, or one on each broker if there are fewer."""

    def __init__(
        self, directory: Path, sizes: Sizes, *, brokers: int = 1, controllers: int = 1, coordinators: int = 0
    ) -> None:
        self.directory = directory
        self.sizes = sizes
        self.brokers, self.controllers, self.coordinators = brokers, controllers, coordinators
        self.start_s = 0.0
        self._cluster: LocalCluster | None = None
        self._topics = itertools.count()

    def __enter__(self) -> Headrace:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        started = time.monotonic()
        self._cluster = LocalCluster(
            brokers=self.brokers,
            controllers=self.controllers,
            coordinators=self.coordinators,
            data=self.directory,
            start_timeout_s=60,
        ).start()
        try:
            with Producer(bootstrap_servers=self.bootstrap, acks="1", linger_ms=0) as producer:
                producer.send("first", b"x" * 100).result(timeout=30)
                self.start_s = time.monotonic() - started
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        assert self._cluster is not None
        return self._cluster.bootstrap_servers

    @property
    def broker_pid(self) -> int:
        return self.pids("broker")[0]

    def pids(self, *roles: str) -> list[int]:
        assert self._cluster is not None
        return [int(node["pid"]) for node in self._cluster.ps() if not roles or node["role"] in roles]

    # -- topics

    def new_topic(self, policy: str, *, partitions: int = PARTITIONS) -> str:
        name = f"bench-{policy}-{next(self._topics)}"
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            config = {"log.flush": policy, "file.delete.delay.ms": str(REMOVAL_DELAY_MS)}
            topic = NewTopic(name, partitions=partitions, replication_factor=min(self.brokers, REPLICAS), config=config)
            admin.create_topics([topic], timeout=60)
        return name

    def delete_topic(self, name: str) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.delete_topics([name])
        wait_for_removal(self.directory, name)

    @contextmanager
    def topic(self, policy: str, *, partitions: int = PARTITIONS) -> Iterator[str]:
        """A new topic, which is deleted after the block."""
        name = self.new_topic(policy, partitions=partitions)
        try:
            yield name
        finally:
            self.delete_topic(name)

    # -- workloads

    def bench(self, workload: str, topic: str, *arguments: str, timeout_s: float = 180) -> dict[str, Any]:
        """`headrace bench WORKLOAD`. Raises RuntimeError unless the workload's own check of its records passed."""
        command = [PYTHON, "-m", "headrace_tools", "bench", workload, "--topic", topic, "-b", self.bootstrap]
        command += ["-o", "json"]
        found = run_json([*command, *arguments], timeout_s=timeout_s)
        if found.get("verified") is not True:
            raise RuntimeError(f"{' '.join(command)}: not verified: {found}")
        return found

    def throughput(self, samples: Samples, policy: str, *, acks: str = "1", number: int = 0) -> None:
        """Run every produce API into a new topic, and every consume API from the largest of these topics. ``number`` is
        the number of the round. Each round begins with another API, so that no API is always the first.
        """
        first = number % len(PRODUCE_APIS)
        label = policy if acks == "1" else f"{policy}.acks-{acks}"
        for api in PRODUCE_APIS[first:] + PRODUCE_APIS[:first]:
            with self._measured(samples, f"headrace.produce.{api}.{label}", policy) as topic:
                records = self.sizes.records(api)
                found = self.bench("produce", topic, "--api", api, "--records", str(records), "--acks", acks)
                samples.add(f"headrace.produce.{api}.{label}", found["records_per_s"], "rec/s")
                samples.add(f"headrace.produce.{api}.{label}.mib", found["mib_per_s"], "MiB/s")
                if api == "arrow" and acks == "1":
                    self._consume(samples, topic, policy)

    def _consume(self, samples: Samples, topic: str, policy: str) -> None:
        for api in CONSUME_APIS:
            records = min(self.sizes.records(api), self.sizes.arrow)
            found = self.bench("consume", topic, "--api", api, "--records", str(records))
            samples.add(f"headrace.consume.{api}.{policy}", found["records_per_s"], "rec/s")
            samples.add(f"headrace.consume.{api}.{policy}.mib", found["mib_per_s"], "MiB/s")

    @contextmanager
    def _measured(self, samples: Samples, name: str, policy: str) -> Iterator[str]:
        """A new topic; a failure in the block is the workload's, and does not end the run."""
        try:
            with self.topic(policy) as topic:
                yield topic
        except FAILURES as failure:
            samples.fail(name, str(failure))

    def together(self, samples: Samples, policy: str) -> None:
        """Write with each of two APIs, while another process reads the same records with the same API."""
        for api in ("arrow", "object"):
            with self.topic(policy) as topic, ThreadPoolExecutor(1) as pool:
                records = self.sizes.records(api)
                wanted = {"bootstrap": self.bootstrap, "topic": topic, "api": api, "records": records}
                reading = pool.submit(partial(our_clients.run_role, "read", timeout_s=180, **wanted))
                found = self.bench("produce", topic, "--api", api, "--records", str(records))
                if not (read := reading.result())["verified"]:
                    raise RuntimeError(f"{topic}: the reader has missed or doubled records: {read}")
            samples.add(f"headrace.together.{api}.{policy}", found["records_per_s"], "rec/s")
            samples.add(f"headrace.together.{api}.{policy}.read", read["records_per_s"], "rec/s")

    def latency(self, samples: Samples, policy: str, *, acks: str = "1") -> None:
        """Measure the time from send to receipt at 1,000 records per second."""
        label = policy if acks == "1" else f"{policy}.acks-{acks}"
        with self._measured(samples, f"headrace.latency.{label}", policy) as topic:
            records = str(max(1000, int(1000 * self.sizes.seconds)))
            found = self.bench("latency", topic, "--records", records, "--rate", "1000", "--acks", acks)
            for quantile in ("p50", "p99", "p999", "max"):
                samples.add(f"headrace.latency.{quantile}.{label}", found["latency_ms"][quantile], "ms")

    def connections(self, samples: Samples, policy: str, *, count: int = 200, acks: str = "1") -> None:
        """``raw``: a thin client that encodes each record; ``sdk``: the SDK's asynchronous producer."""
        for client in ("raw", "sdk"):
            label = f"headrace.connections.{client}.{policy}" + ("" if acks == "1" else f".acks-{acks}")
            with self._measured(samples, label, policy) as topic:
                found = our_clients.connections(
                    self.bootstrap, topic, count=count, seconds=self.sizes.seconds, acks=acks, sdk=client == "sdk"
                )
                samples.add(label, found["requests_per_s"], "req/s")
                samples.add(f"{label}.p99", found["latency_ms"]["p99"], "ms")

    def memory(self, samples: Samples, moment: str) -> None:
        """``moment`` "idle": measure the current memory of the broker; "loaded": its peak memory."""
        pid = self.broker_pid
        samples.add(f"headrace.rss.{moment}", rss_mib(pid) if moment == "idle" else peak_rss_mib(pid), "MiB")


def grpc_ceiling(samples: Samples, sizes: Sizes) -> None:
    """Raw gRPC with the messages, streams and processes of the Arrow paths. The best message size counts."""
    seconds = min(3.0, sizes.seconds)
    for direction in ("up", "down", "echo"):
        best = 0.0
        for size in sizes.echo_bytes:
            found = echo.measure(direction, size=size, seconds=seconds)
            samples.add(f"grpc.{direction}.{size}", found["mib_per_s"], "MiB/s")
            best = max(best, found["mib_per_s"])
        samples.add(f"grpc.{direction}", best, "MiB/s")
    found = echo.measure("up", size=UNBATCHED_BYTES, streams=200, apart=True, in_flight=1, seconds=seconds)
    samples.add("grpc.connections", found["messages_per_s"], "req/s")
