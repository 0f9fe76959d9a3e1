"""Add controllers to a running cluster (KIP-853): each controller starts as an observer, catches up, and becomes a
voter, one at a time. If adding the controllers is interrupted, the next ``up`` continues the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace_core.errors import ClusterStartError, DuplicateVoterError, HeadraceError

from . import nodes as node_files
from .state import ClusterState, Node


def joining(state: ClusterState) -> tuple[Node, ...]:
    return tuple(node for node in state.of_role("controller") if node.joining)


def with_controllers(
    state: ClusterState, count: int, make: Callable[[str, int, int, int], Node], pick: Callable[[int], list[int]]
) -> ClusterState:
    """The state of the cluster with ``count`` controllers; the new controllers are marked as joining. ``make`` makes a
    node from (role, id, client port, internal port); ``pick`` finds a number of free ports."""
    there = state.of_role("controller")
    first = max(node.id for node in there) + 1
    free = pick(2 * (count - len(there)))
    new = tuple(
        replace(make("controller", first + number, free[2 * number], free[2 * number + 1]), joining=True)
        for number in range(count - len(there))
    )
    rest = tuple(node for node in state.nodes if node.role != "controller")
    return replace(state, nodes=(*there, *new, *rest))


def add_voters(
    state: ClusterState,
    write: Callable[[ClusterState], None],
    *,
    timeout_s: float,
    client: Mapping[str, str],
) -> ClusterState:
    """Make the joining controllers voters; after each controller, ``write`` stores the state of the cluster.
    ``client``: keys of security for a client. Raises ClusterStartError, which names the controller that failed; all
    nodes keep running, and the next ``up`` tries again."""
    waiting = joining(state)
    if not waiting:
        return state
    from headrace.admin import Admin  # imported here, because starting nodes seldom needs a client

    addresses = ",".join(node.address for node in state.of_role("controller") if not node.joining)
    with Admin({"bootstrap.servers": addresses, "client.id": "headrace-local", **client}) as admin:
        for node in waiting:
            try:
                admin.add_voter(
                    node.id, node_files.directory_id(node), address=node.internal_address, timeout=timeout_s
                )
            except DuplicateVoterError:
                pass  # an interrupted earlier attempt has already made the controller a voter
            except HeadraceError as error:
                raise ClusterStartError(
                    f"controller {node.id} runs but is not a voter yet: {error.message} [{error.code}]; `headrace "
                    "up` tries again"
                ) from error
            state = state.with_node(replace(state.node("controller", node.id), joining=False))
            write(state)
    return state
