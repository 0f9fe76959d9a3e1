"""Connections to a node are closed when the node changes its address or is removed."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.node_links import NodeLinks
from headrace_core.metadata import EMPTY_IMAGE, ImageBuilder
from headrace_core.metadata.records import (
    BrokerEndpoint,
    RegisterBrokerRecord,
    RegisterCoordinatorRecord,
    UnregisterBrokerRecord,
)
from tests.worlds.waiting import in_loop


class Link:
    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_closed = True


class Metadata(MetadataState):
    def apply(self, record: Any) -> None:
        builder = ImageBuilder(self.image)
        builder.replay(record)
        self.advance(*builder.finish(self.image.next_offset + 1))

    def broker(self, number: int, port: int) -> None:
        endpoints = (BrokerEndpoint("client", "a", 1), BrokerEndpoint("internal", "a", port))
        self.apply(RegisterBrokerRecord(number, self.image.next_offset, bytes(16), (bytes(16),), endpoints))

    def coordinator(self, number: int, port: int) -> None:
        endpoints = (BrokerEndpoint("internal", "a", port),)
        self.apply(RegisterCoordinatorRecord(number, self.image.next_offset, bytes([number]) * 16, endpoints))


@in_loop
async def test_a_link_ends_when_no_node_has_its_address() -> None:
    metadata = Metadata()
    assert metadata.image == EMPTY_IMAGE
    metadata.broker(1, 101)
    metadata.broker(2, 102)
    metadata.coordinator(1, 201)
    links: NodeLinks[Link] = NodeLinks(metadata)
    one, two, three = links["a:101"], links["a:102"], links["a:201"] = Link(), Link(), Link()
    metadata.broker(2, 103)  # another address
    assert set(links) == {"a:101", "a:201"}
    metadata.coordinator(1, 202)
    metadata.broker(1, 101)  # the same address, a new process
    assert set(links) == {"a:101"}
    metadata.apply(UnregisterBrokerRecord(1, metadata.image.brokers[1].broker_epoch))
    assert not links
    await links.close()
    assert [one.is_closed, two.is_closed, three.is_closed] == [True] * 3
    metadata.broker(1, 101)  # after its end


@in_loop
async def test_links_that_are_left_end_with_their_owner() -> None:
    metadata = Metadata()
    links: NodeLinks[Link] = NodeLinks(metadata)
    one = links["a:101"] = Link()
    await links.close()
    assert one.is_closed
    assert not links
