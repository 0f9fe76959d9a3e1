"""Child processes of bench/groups.py. Members are plain streams and commits are plain calls, both without the SDK. The
benchmark therefore measures only the coordinator.

    group_streams.py '{"coordinator", "topic", "groups", "members", "seconds"}'    heartbeats at the coordinator's pace
    group_streams.py '{"coordinator", "topic", "groups", "offsets", "seconds", "at_once"}'    commits, so many at a time

JSON objects on stdout: ``ready`` (all have joined), then the result.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from typing import Any

import grpc.aio

from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc

#: Number of calls on one connection. A coordinator accepts 32, and gRPC holds further calls back.
CALLS = 16


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Stream:
    """A member that accepts each assignment at once, and reads no records."""

    def __init__(self, stub: Any, group: str, topic: str, latencies: list[float]) -> None:
        self._stub, self._group, self._topic, self._latencies = stub, group, topic, latencies
        self._id = str(uuid.uuid4())
        self._epoch = self._revision = 0
        self._owned = groups_pb2.GroupPartitions()
        self._interval_s = 5.0
        self.has_joined = asyncio.Event()
        self.measures = False
        self.errors: list[str] = []

    def _request(self, number: int, *, is_first: bool) -> Any:
        beat = groups_pb2.MemberHeartbeat(
            group_id=self._group, member_id=self._id, member_epoch=self._epoch, revision=self._revision
        )
        beat.owned.CopyFrom(self._owned)
        if is_first:
            beat.topics.names.append(self._topic)
            beat.rebalance_timeout_ms = 300_000
        return groups_pb2.MembershipRequest(correlation_id=number, heartbeat=beat)

    async def run(self) -> None:
        call = self._stub.Membership()
        number, is_first, is_due, waits = 0, True, True, False
        sent = due = time.perf_counter()
        reading = asyncio.create_task(call.read())
        while True:
            if not waits and (is_due or time.perf_counter() >= due):
                number += 1
                sent, waits, is_due = time.perf_counter(), True, False
                await call.write(self._request(number, is_first=is_first))
            await asyncio.wait([reading], timeout=None if waits else max(due - time.perf_counter(), 0))
            if not reading.done():
                continue
            response = reading.result()
            if response is grpc.aio.EOF:
                self.errors.append("the stream ended")
                return
            reading = asyncio.create_task(call.read())
            if response.correlation_id == number and waits:
                waits = False
                if self.measures and not response.error.code:
                    self._latencies.append(time.perf_counter() - sent)
                due = sent + self._interval_s
            if response.error.code:
                self.errors.append(response.error.message)
                is_first = True
                due = time.perf_counter() + 0.2
                continue
            is_first = False
            self._interval_s = response.heartbeat_interval_ms / 1000
            self._epoch = response.member_epoch
            if response.HasField("assignment"):
                self._owned, self._revision = response.assignment, response.revision
                if any(each.partitions for each in response.assignment.topics):
                    self.has_joined.set()
                is_due = True


async def heartbeats(asked: dict[str, Any], stubs: list[Any]) -> None:
    latencies: list[float] = []
    streams = [
        Stream(stubs[number % len(stubs)], group, asked["topic"], latencies)
        for number, group in enumerate(asked["groups"])
        for _ in range(asked["members"])
    ]
    tasks = []
    begun = time.perf_counter()
    for stream in streams:
        tasks.append(asyncio.create_task(stream.run()))
        await asyncio.sleep(0.002)  # spread the joins, because this benchmark does not measure joins at the same moment
    for stream in streams:
        await stream.has_joined.wait()
    tell(ready=True, seconds=time.perf_counter() - begun)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for stream in streams:
        stream.measures = True
    await asyncio.sleep(asked["seconds"])
    errors = [error for stream in streams for error in stream.errors]
    ended = sum(task.done() for task in tasks)
    tell(latencies_ms=[round(each * 1e3, 3) for each in latencies], errors=len(errors), first=errors[:3], ended=ended)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def commits(asked: dict[str, Any], stubs: list[Any]) -> None:
    latencies: list[float] = []
    failed: list[str] = []
    end = 0.0

    async def commit_on(group: str, stub: Any) -> None:
        offset = 0
        while time.perf_counter() < end:
            offset += 1
            request = groups_pb2.CommitOffsetsRequest(group_id=group, member_epoch=-1)
            for partition in range(asked["offsets"]):
                request.offsets.add(topic=asked["topic"], partition=partition, offset=offset, leader_epoch=-1)
            sent = time.perf_counter()
            try:
                answer = await stub.CommitOffsets(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                failed.append(error.details() or "")
                await asyncio.sleep(0.1)
                continue
            wrong = [each.error.message for each in answer.results if each.error.code]
            if wrong:
                failed.append(wrong[0])
            else:
                latencies.append(time.perf_counter() - sent)

    groups = asked["groups"]
    for group in groups:  # the shards of the groups may still be loading
        while True:
            request = groups_pb2.CommitOffsetsRequest(group_id=group, member_epoch=-1)
            request.offsets.add(topic=asked["topic"], partition=0, offset=0, leader_epoch=-1)
            try:
                await stubs[0].CommitOffsets(request, timeout=30)
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
    tell(ready=True, seconds=0.0)
    begun = time.perf_counter()
    end = begun + asked["seconds"]
    await asyncio.gather(
        *(commit_on(groups[number % len(groups)], stubs[number % len(stubs)]) for number in range(asked["at_once"]))
    )
    seconds = time.perf_counter() - begun
    tell(
        requests=len(latencies), offsets=len(latencies) * asked["offsets"], seconds=seconds,
        latencies_ms=[round(each * 1e3, 3) for each in latencies], errors=len(failed), first=failed[:3], ended=0,
    )  # fmt: skip


async def main(asked: dict[str, Any]) -> None:
    options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    calls = asked["at_once"] if "offsets" in asked else len(asked["groups"]) * asked["members"]
    channels = [grpc.aio.insecure_channel(asked["coordinator"], options=options) for _ in range(-(-calls // CALLS))]
    stub_of: Any = groups_pb2_grpc.GroupsStub
    stubs = [stub_of(channel) for channel in channels]
    random.shuffle(asked["groups"])
    try:
        await (commits if "offsets" in asked else heartbeats)(asked, stubs)
    finally:
        for channel in channels:
            await channel.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
