"""The stream for appends to one broker, which all shards of this coordinator share."""

from __future__ import annotations

from headrace_core.errors import NetworkError
from headrace_core.rpc import PLAINTEXT, ChannelPurpose, Channels
from headrace_core.rpc.request_link import RequestLink
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc

_SLACK_S = 1.0  #: Seconds to wait for an answer to an append, in addition to the broker's timeout.


class ProduceLink:
    """Appends to partitions that the broker at ``address`` leads. Call all methods in one event loop."""

    def __init__(self, address: str, channels: Channels = PLAINTEXT) -> None:
        def check(_: produce_pb2.ProduceRequest, response: produce_pb2.ProduceResponse) -> None:
            if len(response.results) != 1:
                raise NetworkError(f"{address} answered one append with {len(response.results)} results")

        self._link: RequestLink[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse] = RequestLink(
            address,
            ChannelPurpose.PRODUCE,
            lambda channel: produce_pb2_grpc.ProduceStub(channel).Produce(),  # type: ignore[no-untyped-call]
            what="an append",
            check=check,
            channels=channels,
        )

    async def append(
        self, partition: produce_pb2.ProducePartition, timeout_s: float
    ) -> produce_pb2.ProducePartitionResult:
        """Return the result of one append with acks=all. Raises the errors of RequestLink.ask."""
        request = produce_pb2.ProduceRequest(
            acks=produce_pb2.ACKS_ALL, timeout_ms=max(int(timeout_s * 1_000), 1), partitions=[partition]
        )
        return (await self._link.ask(request, timeout_s + _SLACK_S)).results[0]

    async def close(self) -> None:
        """Fail pending appends."""
        await self._link.close()
