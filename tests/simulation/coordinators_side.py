"""The surroundings of simulated coordinators (groups, transactions): calls to the controllers, and appends to the logs
of their shards."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from headrace_controller.cluster.requests import CoordinatorHeartbeatsEnded
from headrace_core.errors import HeadraceError, NetworkError
from tests.simulation.group_hosts import SESSION_MS, Coordinator, CoordinatorHost, HowFar
from tests.simulation.group_log import LOGS, LogPartition
from tests.simulation.nodes_world import NodesWorld

CONTROLLERS = "controllers"


class CoordinatorsSide(NodesWorld):
    """See the module."""

    plan: Any
    coordinators: Sequence[CoordinatorHost]
    #: The logs of the shards, by shard number.
    logs: Sequence[LogPartition]
    numbers: Iterator[int]
    #: Until this time, responses to appends are lost, or appends are delayed.
    lost_appends_until_ms = 0.0
    late_appends_until_ms = 0.0

    def stream_left(self, process: Coordinator) -> None:
        """The stream of a coordinator's heartbeats has ended; the controllers notice the end, unless they are cut
        off."""
        if process.registered is None:
            return
        ended = CoordinatorHeartbeatsEnded(
            process.registered.coordinator_id, process.registered.coordinator_epoch, process.stream
        )
        late_ms = self.rng.uniform(1.0, 30.0)
        if (process.host.name, CONTROLLERS) in self.cuts:
            late_ms = self.rng.uniform(300.0, 1_500.0)
        self.scheduler.after(late_ms, self.decide, ended)

    # -- the logs ----------------------------------------------------------------------------------------------------

    def send_append(self, host: CoordinatorHost, to: int, message: Any, answer: asyncio.Future[Any]) -> None:
        rng = self.rng
        delay_ms = self.message_delay_ms((host.name, LOGS))
        now_ms = self.scheduler.now_ms
        is_late = now_ms < self.late_appends_until_ms and rng.random() < 0.4
        if delay_ms is None and rng.random() < 0.5:
            return  # never observed
        delay_ms = rng.uniform(100.0, 600.0) if delay_ms is None else delay_ms
        if is_late:
            delay_ms += rng.uniform(50.0, 2_500.0)
            self.count("log", "append late")
        loop = host.loop
        assert loop is not None

        def reply(result: Any) -> None:
            back_ms = self.message_delay_ms((LOGS, host.name))
            if back_ms is None or (self.scheduler.now_ms < self.lost_appends_until_ms and rng.random() < 0.5):
                self.count("log", "answer of an append lost")
                if rng.random() < 0.5:  # the connection breaks; otherwise no response arrives
                    self.scheduler.after(rng.uniform(1.0, 60.0), loop.run, fail)
                return
            self.scheduler.after(back_ms, loop.run, lambda: answer.done() or answer.set_result(result))

        def fail() -> None:
            if not answer.done():
                answer.set_exception(NetworkError("the stream of appends broke"))

        log = self.logs[message.partition]
        self.scheduler.after(delay_ms, log.arrived, to, message, reply)

    def logs_changed(self, log: LogPartition) -> None:
        leader = log.leader if log.has_leader else None
        for host in self.coordinators:
            delay_ms = self.rng.uniform(*self.plan.metadata_ms)
            if log.unaware and self.rng.random() < 0.5:  # (some coordinators do not know the new leader yet)
                delay_ms += self.rng.uniform(20.0, 300.0)
            self.in_order(("leaders", host.number), delay_ms,
                          functools.partial(host.learns_of_leader, log.partition.partition, leader))  # fmt: skip

    def ask_controllers(self, host: CoordinatorHost, request: Any, answer: asyncio.Future[Any]) -> None:
        delay_ms = self.message_delay_ms((host.name, CONTROLLERS))
        loop = host.loop
        assert loop is not None

        def on_reply(reply: Any) -> None:
            if answer.done():
                return
            if isinstance(reply, HeadraceError):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

        loop.call_later(SESSION_MS / 2_000, on_reply, NetworkError("the controllers do not answer"))
        if delay_ms is None:
            return

        def arrive() -> None:
            reply = len(self.steps) if isinstance(request, HowFar) else self.decide(request)
            back_ms = self.message_delay_ms((CONTROLLERS, host.name))
            if back_ms is not None:
                self.in_order(("answer", host.number, host.life), back_ms, lambda: loop.run(on_reply, reply))

        self.in_order(("call", host.number), delay_ms, arrive)
