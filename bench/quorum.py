"""The metadata quorum: three controllers, each with its own fsynced log, at default timeouts.

    quorum.py [--kills 60] [--transfers 60] [--writes 20000] [--smoke] [--only failover,transfer,writes] [--save]

Real processes (``LocalCluster``) and production defaults. Requests are gRPC Admin calls through any live controller.
Three cases:

    failover  kill -9 of the leader, to the next acknowledged metadata write; the dead controller is restarted and has
              caught up before the next kill
    transfer  a graceful handover, to the first write acknowledged after the request for it
    writes    metadata writes per second: one configuration entry per request, one request per decision, many at a time;
              and one at a time, for the latency

At the end every acknowledged write must be on every controller. Each sample is one JSON object per line; a table of
bars follows. Exit 1 when a bar is missed or a case fails.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_core.rpc import environment  # import before grpc, because this import sets grpc's switches

# isort: split
import grpc.aio
from measure import ROOT, WORK, Samples, emit, machine, rss_mib, save, table

from headrace import LocalCluster
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

TOPIC = "written"
KEY = "retention.ms"


@dataclass(frozen=True, slots=True)
class Bar:
    what: str
    sample: str
    percentile: float  # 0.5: the median
    limit: float
    at_least: bool = False

    def verdict(self, samples: Samples) -> tuple[float | None, bool]:
        values = samples.values.get(self.sample)
        if not values:
            return None, False
        value = percentile(values, self.percentile)
        return value, value >= self.limit if self.at_least else value < self.limit


BARS = {
    "failover": (Bar("kill -9 of the leader to an acknowledged write, p95, s", "failover.seconds", 0.95, 3.0),),
    "transfer": (Bar("graceful transfer to an acknowledged write, p95, s", "transfer.seconds", 0.95, 0.3),),
    "writes": (Bar("metadata writes/s over three fsyncing voters", "writes.per_s", 0.5, 2_000, at_least=True),),
}


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@dataclass
class Quorum:
    """Three controllers and a broker, and a stub for each controller."""

    local: LocalCluster
    stubs: dict[int, Any] = field(default_factory=dict)
    channels: list[grpc.aio.Channel] = field(default_factory=list)
    #: topic -> the last acknowledged value of its key
    written: dict[str, str] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(86_400_000))

    async def connect(self) -> None:
        for node in self.local.ps():
            if node["role"] == "controller":
                options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
                channel = grpc.aio.insecure_channel(node["address"], options=options)
                self.channels.append(channel)
                self.stubs[node["id"]] = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()

    async def create(self, topic: str) -> None:
        request = admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(name=topic, partitions=1)])
        answer = await self.anybody(lambda stub: stub.CreateTopics(request, timeout=5))
        error = answer.results[0].error
        if error.code:
            raise RuntimeError(f"{topic}: {error}")

    async def alter(self, stub: Any, topic: str, timeout_s: float = 5.0) -> None:
        """Do one metadata write. Raises an error if the controllers refuse the write."""
        value = str(next(self.numbers))
        op = admin_pb2.AlterConfigOp(kind=admin_pb2.AlterConfigOp.KIND_SET, name=KEY, value=value)
        resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=topic)
        request = admin_pb2.AlterConfigsRequest(resources=[admin_pb2.AlterConfigsResource(resource=resource, ops=[op])])
        answer = await stub.AlterConfigs(request, timeout=timeout_s)
        if answer.results[0].error.code:
            raise RuntimeError(f"{topic}: {answer.results[0].error}")
        self.written[topic] = value

    async def anybody(self, call: Callable[[Any], Awaitable[Any]], *, but: int = -1, within_s: float = 30.0) -> Any:
        """Ask the controllers one after another until one answers."""
        deadline = time.monotonic() + within_s
        while True:
            for node_id, stub in self.stubs.items():
                if node_id == but:
                    continue
                try:
                    return await call(stub)
                except grpc.aio.AioRpcError as failure:
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"no controller answered within {within_s} s: {failure.details()}") from None
            await asyncio.sleep(0.005)

    async def describe(self, *, but: int = -1) -> admin_pb2.DescribeQuorumResponse:
        request = admin_pb2.DescribeQuorumRequest()
        answer: admin_pb2.DescribeQuorumResponse = await self.anybody(
            lambda stub: stub.DescribeQuorum(request, timeout=2), but=but
        )
        return answer

    async def whole(self) -> admin_pb2.DescribeQuorumResponse:
        """Wait until all three controllers have the leader's log."""
        deadline = time.monotonic() + 60
        while True:
            found = await self.describe()
            if len(found.voters) == 3 and all(0 <= voter.lag <= 1 for voter in found.voters):
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(f"the controllers have not all caught up after 60 s: {found}")
            await asyncio.sleep(0.02)

    async def check(self) -> int:
        """Check that every controller shows every acknowledged value, once it has applied the leader's log; returns
        their number."""
        await self.whole()
        deadline = time.monotonic() + 30
        for node_id, stub in self.stubs.items():
            while lost := await self._lost(stub):
                if time.monotonic() > deadline:  # the controller has the log, but does not return the written values
                    raise RuntimeError(f"controller {node_id} {lost}")
                await asyncio.sleep(0.02)
        return len(self.written)

    async def _lost(self, stub: Any) -> str:
        """The first acknowledged value that a controller does not show; "": none."""
        resources = [
            admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=topic) for topic in self.written
        ]
        answer = await stub.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resources=resources), timeout=30)
        for result in answer.results:
            expected = self.written[result.resource.name]
            value = next((entry.value for entry in result.entries if entry.name == KEY), "")
            if not value or int(value) < int(expected):
                return f"has {value or 'nothing'} for {result.resource.name}, not {expected}"
        return ""


async def first_write(quorum: Quorum, topic: str, *, but: int = -1) -> float:
    """Seconds until a controller acknowledges a write: all live controllers are asked at once and repeatedly, because a
    client does not know the next leader."""
    begun = time.monotonic()
    done = asyncio.Event()

    async def ask(stub: Any) -> None:
        while not done.is_set():
            try:
                await quorum.alter(stub, topic, timeout_s=1.0)
            except grpc.aio.AioRpcError:
                if time.monotonic() - begun > 60:
                    raise
                await asyncio.sleep(0.01)
            else:
                done.set()

    asking = [asyncio.ensure_future(ask(stub)) for node_id, stub in quorum.stubs.items() if node_id != but]
    waiting = asyncio.ensure_future(done.wait())
    await asyncio.wait({waiting, *asking}, return_when=asyncio.FIRST_COMPLETED)
    seconds = time.monotonic() - begun
    done.set()
    waiting.cancel()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if len(failures) == len(asking):
        raise RuntimeError(f"no controller acknowledged a write within 60 s: {failures[0]}")
    return seconds


# ---------------------------------------------------------------------------------------------- the cases


async def failover(samples: Samples, quorum: Quorum, count: int) -> None:
    for _ in range(count):
        leader = (await quorum.whole()).leader_id
        await first_write(quorum, TOPIC)
        await asyncio.to_thread(quorum.local.kill, "controller", leader)
        samples.add("failover.seconds", await first_write(quorum, TOPIC, but=leader), "s")
        await asyncio.to_thread(quorum.local.restart, "controller", leader)
    await quorum.whole()


async def transfer(samples: Samples, quorum: Quorum, count: int) -> None:
    for _ in range(count):
        leader = (await quorum.whole()).leader_id
        await first_write(quorum, TOPIC)
        begun = time.monotonic()
        request = admin_pb2.TransferLeadershipRequest(voter_id=-1)
        answer = await quorum.stubs[leader].TransferLeadership(request, timeout=10)
        if answer.leader_id == leader:
            raise RuntimeError(f"controller {leader} was asked to hand over the leadership, but still leads")
        await first_write(quorum, TOPIC)
        samples.add("transfer.seconds", time.monotonic() - begun, "s")


async def writes(samples: Samples, quorum: Quorum, count: int, *, rounds: int = 3, at_once: int = 128) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(at_once)]
    for topic in topics:
        await quorum.create(topic)
    leader = (await quorum.whole()).leader_id
    stub = quorum.stubs[leader]
    for _ in range(rounds):
        remaining = iter(range(count // rounds))

        async def client(topic: str, remaining: Any = remaining) -> None:
            for _ in remaining:
                await quorum.alter(stub, topic)

        begun = time.monotonic()
        await asyncio.gather(*(client(topic) for topic in topics))
        samples.add("writes.per_s", (count // rounds) / (time.monotonic() - begun), "1/s")
    for _ in range(min(count // 20, 500)):
        begun = time.monotonic()
        await quorum.alter(stub, topics[0])
        samples.values.setdefault("writes.alone_ms", []).append((time.monotonic() - begun) * 1000)
    samples.units["writes.alone_ms"] = "ms"
    emit(sample="writes.alone_ms", median=statistics.median(samples.values["writes.alone_ms"]))
    for node in quorum.local.ps():
        if node["role"] == "controller":
            samples.add("writes.rss", rss_mib(int(node["pid"])), "MiB")


async def run(samples: Samples, local: LocalCluster, asked: argparse.Namespace, cases: Sequence[str]) -> None:
    quorum = Quorum(local)
    await quorum.connect()
    try:
        await quorum.create(TOPIC)
        counts = {"failover": asked.kills, "transfer": asked.transfers, "writes": asked.writes}
        for case in cases:
            try:
                await CASES[case](samples, quorum, counts[case])
            except (RuntimeError, OSError, grpc.aio.AioRpcError) as failure:
                samples.fail(case, str(failure))
        emit(acknowledged_and_found=await quorum.check())
    finally:
        await quorum.close()


CASES: dict[str, Callable[[Samples, Quorum, int], Awaitable[None]]] = {
    "failover": failover,
    "transfer": transfer,
    "writes": writes,
}


def verdicts(samples: Samples, cases: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for bar in (bar for case in cases for bar in BARS[case]):
        value, met = bar.verdict(samples)
        found.append({"what": bar.what, "bar": bar.limit, "at_least": bar.at_least, "measured": value, "met": met})
    return found


def shown(bars: Sequence[dict[str, Any]]) -> str:
    lines = []
    for bar in bars:
        value = "not measured" if bar["measured"] is None else f"{bar['measured']:.3g}"
        sign = ">=" if bar["at_least"] else "<"
        lines.append(f"{'yes' if bar['met'] else 'NO':<4}{bar['what']:<66}{sign} {bar['bar']:<8g}{value}")
    return "\n".join(lines)


def spread(samples: Samples) -> dict[str, dict[str, float]]:
    return {
        name: {"n": len(values), "p50": percentile(values, 0.5), "p95": percentile(values, 0.95), "max": max(values)}
        for name, values in samples.values.items()
        if name in ("failover.seconds", "transfer.seconds", "writes.alone_ms")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--transfers", type=int, default=60)
    parser.add_argument("--writes", type=int, default=20_000)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--work", type=Path, default=WORK, help="directory of the cluster during the run")
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    if asked.smoke:
        asked.kills, asked.transfers, asked.writes = 2, 2, 600
    cases = asked.only.split(",")
    samples = Samples()
    environment.tune_malloc()
    emit(machine=machine())
    directory = asked.work / "quorum"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        with LocalCluster(brokers=1, controllers=3, data=directory, start_timeout_s=60, stop_timeout_s=60) as local:
            asyncio.run(run(samples, local, asked, cases))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    bars = verdicts(samples, cases)
    emit(bars=bars, spread=spread(samples))
    print(table(samples))
    print(shown(bars))
    if asked.save:
        extra = {"bars": bars, "spread": spread(samples)}
        print(save(samples, what="quorum", extra=extra).relative_to(ROOT))
    for failed in samples.failures:
        print(f"failed: {failed}")
    return 1 if samples.failures or not all(bar["met"] for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
