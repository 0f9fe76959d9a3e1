"""The guards of reassignments, producer ids, shards and levels, each with the patch that removes it; complements
cluster_mutants.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace_controller.cluster import balancing, brokers, core, features, moves, producer_ids, reassignment, shards
from headrace_controller.cluster.sessions import CoordinatorSessions
from headrace_core.errors import BrokerIdNotRegisteredError
from headrace_core.metadata import CoordinatorImage, MetadataImage, ShardImage, ShardRecord, ledger
from tests.simulation.mutants.cluster_mutants import Mutant, Patch


def _without(owner: Any, name: str, value: Any = lambda *_, **__: None) -> Callable[[Patch], None]:
    return lambda patch: patch(owner, name, value)


def _always(owner: Any, name: str) -> Callable[[Patch], None]:
    return _without(owner, name, lambda *_, **__: True)


def _shard_epoch_stays(patch: Patch) -> None:
    """The replay also refuses a shard epoch that does not grow."""

    def replay(builder: Any, record: ShardRecord) -> bool:
        builder._shards[record.topic_id, record.partition] = ShardImage(record.coordinator_id, record.shard_epoch)
        return True

    patch(ledger, "_REPLAY", {**ledger._REPLAY, ShardRecord: replay})
    patch(
        shards,
        "next_epoch",
        lambda image, key: image.ledger.shards[key].shard_epoch if key in image.ledger.shards else 1,
    )


def _whoever_has_the_name(image: MetadataImage, coordinator_id: int, coordinator_epoch: int) -> CoordinatorImage:
    found = image.ledger.coordinators.get(coordinator_id)
    if found is None:
        raise BrokerIdNotRegisteredError(f"coordinator {coordinator_id}")
    return found


_begin_anew = CoordinatorSessions.begin_anew


def _streams_are_known(of: CoordinatorSessions, coordinators: Iterable[tuple[int, int]], now_ms: float) -> None:
    _begin_anew(of, coordinators, now_ms)
    for session in of._sessions.values():
        session.stream = 0


def _anybody_takes_replicas(patch: Patch) -> None:
    patch(reassignment, "_takes", lambda *_: True)
    patch(reassignment, "_is_void", lambda *_: False)


MUTANTS = (
    Mutant(
        "block-given-twice",
        "KIP-730",
        "producer_ids.next_free: what was given out, in flight too",
        _without(producer_ids, "next_free", lambda image: max(0, image.ledger.next_producer_id - producer_ids.BLOCK)),
    ),
    Mutant("shard-epoch-stays", "KAFKA-4362, decision 13", "shards.next_epoch", _shard_epoch_stays),
    Mutant(
        "successor-inherits-epochs",
        "KAFKA-4362, promise 3",
        "shards.inherited: who comes under a name is another",
        _without(shards, "inherited", lambda image, coordinator_id: []),
    ),
    Mutant(
        "former-coordinator-goes-on",
        "promise 3",
        "shards.known: the epoch of a heartbeat is the present one",
        _without(shards, "known", _whoever_has_the_name),
    ),
    Mutant(
        "silent-coordinator-stays",
        "decision 13, promise 5",
        "CoordinatorSessions.is_gone",
        _without(CoordinatorSessions, "is_gone", lambda *_: False),
    ),
    Mutant(
        "coordinators-await-a-session",
        "a coordinator and the leading controller on one machine",
        "CoordinatorSessions.begin_anew: a new leader knows no stream, so that the window of first contacts counts",
        _without(CoordinatorSessions, "begin_anew", _streams_are_known),
    ),
    Mutant(
        "coordinators-end-with-the-window",
        "a living coordinator under a new leader",
        "CoordinatorSessions.is_gone: the window of first contacts is for those without a contact",
        _without(CoordinatorSessions, "is_gone", lambda of, *who: who[-1] > of._first_contacts.over_at_ms),
    ),
    Mutant(
        "completes-early", "KIP-455", "moves.have_arrived: all that is added is in sync", _always(moves, "have_arrived")
    ),
    Mutant("leaves-too-few", "KIP-455, promise 5", "moves.is_enough: who stays is enough", _always(moves, "is_enough")),
    Mutant(
        "drained-takes-replicas",
        "docs/operations/replicas.md",
        "reassignment._takes, ._is_void: the broker lives and is not drained",
        _anybody_takes_replicas,
    ),
    Mutant("no-pace", "issue 5.3", "reassignment._Steps._has_room", _always(reassignment._Steps, "_has_room")),
    Mutant("rebalances-when-off", "issue 5.3", "reassignment._is_wanted", _always(reassignment, "_is_wanted")),
    Mutant(
        "unregistered-with-replicas",
        "KIP-746",
        "balancing.check_unregistered",
        _without(balancing, "check_unregistered"),
    ),
    Mutant(
        "level-over-their-heads", "KIP-584", "features.strangers_to", _without(features, "strangers_to", lambda *_: [])
    ),
    Mutant("stranger-registers", "KIP-584", "features.check_node", _without(features, "check_node")),
    Mutant(
        "newer-records-too-early",
        "KIP-584",
        "features.at_level",
        _without(features, "at_level", lambda image, decision: decision),
    ),
)

assert core.features is features, "the mutants patch the modules that the core uses"
assert brokers.features is features
