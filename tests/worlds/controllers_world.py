"""Real controllers in one process: ``app.serve`` with real disks and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from headrace_controller.app import serve
from headrace_controller.formatting import write_voters
from headrace_core.errors import HeadraceError
from headrace_core.log.files import RealFileSystem
from headrace_core.node.config import NodeConfig
from headrace_core.node.first_voters import InitialVoter
from headrace_core.node.ids import id_to_text
from headrace_core.node.meta_properties import format_directories, read_meta
from headrace_core.rpc import ChannelPurpose, error_from_rpc, open_channel
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc
from tests.worlds.this_process import free_port

CLUSTER = id_to_text(bytes(range(16)))


class Controller:
    """One controller, run in the same way as in production, but not in its own process."""

    def __init__(self, root: Path, node_id: int, bootstrap: str) -> None:
        self.node_id = node_id
        self.root = root / f"controller-{node_id}"
        self.client, self.internal = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        format_directories([str(self.root)], cluster_id=CLUSTER, node_id=node_id)
        self.directory_id = read_meta(str(self.root), node_id=node_id, is_controller=True).directory_id
        self._config = NodeConfig.from_properties(
            {
                "process.roles": "controller",
                "node.id": str(node_id),
                "log.dirs": str(self.root),
                "listeners": f"client://{self.client},internal://{self.internal}",
                "controller.quorum.bootstrap.servers": bootstrap or self.internal,
            },
            role="controller",
        )
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begins_with(self, *voters: Controller) -> None:
        initial = [
            InitialVoter(node_id=each.node_id, address=each.internal, directory_id=each.directory_id) for each in voters
        ]
        write_voters(RealFileSystem(), str(self.root), initial)

    def start(self) -> None:
        self._task = asyncio.create_task(serve(self._config, self._stop))

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    async def cut_short(self) -> None:
        """Cancel the task that runs the controller."""
        task, self._task = self._task, None
        assert task is not None
        task.cancel()
        await asyncio.wait([task])

    async def ended(self) -> None:
        """Wait until the controller has ended without a stop; raise the error that ended it."""
        task, self._task = self._task, None
        assert task is not None
        await task

    async def call(self, method: str, request: Any, *, listener: str = "client") -> Any:
        address = self.client if listener == "client" else self.internal
        async with open_channel(address, ChannelPurpose.CONTROL) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            try:
                return await getattr(stub, method)(request, timeout=60, wait_for_ready=True)
            except grpc.aio.AioRpcError as failure:
                raise error_from_rpc(failure, address) from None

    async def describe(self) -> admin_pb2.DescribeQuorumResponse:
        return await self.call("DescribeQuorum", admin_pb2.DescribeQuorumRequest())

    async def describe_once(self, holds: Callable[[admin_pb2.DescribeQuorumResponse], bool]) -> Any:
        """Describe the quorum until ``holds`` accepts a description; return that description. On a busy machine there
        may be no leader for a moment, so failed calls are repeated."""
        async with asyncio.timeout(60):
            while True:
                try:
                    if holds(found := await self.describe()):
                        return found
                except HeadraceError as error:
                    if not error.retriable:
                        raise
                await asyncio.sleep(0.02)


def ids(replicas: Any) -> list[int]:
    return [each.replica_id for each in replicas]


def with_controllers(root: Path, voters: int, others: int, test: Callable[..., Awaitable[None]]) -> None:
    """Run ``test`` with ``voters`` voting controllers and ``others`` observers."""

    async def run() -> None:
        first = Controller(root, 1, "")
        made = [first, *(Controller(root, node_id, first.internal) for node_id in range(2, voters + others + 1))]
        for each in made:
            each.begins_with(*(made[:voters] if each in made[:voters] else []))
            each.start()
        try:
            await test(*made)
        finally:
            await asyncio.gather(*(each.stop() for each in made))

    asyncio.run(run())
