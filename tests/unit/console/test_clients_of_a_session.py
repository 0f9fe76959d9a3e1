"""The clients of a user's session."""

from __future__ import annotations

import pytest

from headrace_console.cluster import Cluster
from headrace_console.settings import ConsoleSettings
from headrace_core.errors import IllegalStateError
from headrace_core.node.listeners import parse_addresses
from tests.worlds.waiting import in_loop


@in_loop
async def test_no_client_is_made_after_the_end_of_the_session() -> None:
    """A page that is still in progress then must not ask another cluster, or this one without credentials."""
    settings = ConsoleSettings.checked(
        listeners=["http://127.0.0.1:0"],
        bootstrap_servers=parse_addresses(["127.0.0.1:1"], key="console.bootstrap.servers"),
        client={"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
        path_prefix="",
        is_read_only=False,
        allowed_hosts=[],
        registry_urls="",
        directory="",
    )
    cluster = Cluster(settings, ("alice", "secret"))
    await cluster.close()
    with pytest.raises(IllegalStateError):
        cluster.consumer()
    with pytest.raises(IllegalStateError):
        await cluster.prove()
