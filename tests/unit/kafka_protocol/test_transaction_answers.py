"""Answers to the transaction calls, in every state and for every identity of the producer: the broker's and the
coordinator's code, without a network.

The table has Kafka's error numbers. The rows of lasting states are the answers of Kafka 4.3.0 to the same requests; the
rows of states that are writing markers follow the source of its TransactionCoordinator. ``OURS`` has what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, cast

import pytest

from headrace_coordinator.handlers.transactions import TransactionsService
from headrace_coordinator.transaction.messages import MarkersWritten, WriteMarkers
from headrace_coordinator.transaction.state import ProducerIdentity
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from headrace_core.errors import HeadraceError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import MetadataDelta, MetadataImage, PartitionImage, TopicImage
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers.transactions import add_offsets_to_txn, add_partitions_to_txn, end_txn, init_producer_id
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import request_body, response_body

FENCED, FENCED_BEFORE_KIP_588 = "90", "47"
TIMEOUT_MS = 60_000

#: The producer's epoch in the request: the coordinator's, the one before it, two before it, the next one. The last
#: column is another producer id. "+1": success, and the answer has the next epoch.
KAFKA = """
                        current  previous  older  newer  stranger
EndTxn commit, version 1
    unknown                  49        49     49     49        49
    empty                    48         -      -     90        49
    empty, same producer     48        90     90     90        49
    empty, new producer      48        90     90     90        49
    ongoing                   0        90     90     90        49
    committed 1               0        90     90     90        49
    committed 2               0        90     90     90        49
    aborted 1                48        90     90     90        49
    aborted 2                48        90     90     90        49
    timed out                48        90     90     90        49
    fenced                   48        90     90     90        49
    committing 1             51        90     90     90        49
    committing 2             51        90     90     90        49
    aborting 1               48        90     90     90        49
    aborting 2               48        90     90     90        49
    timing out               48        90     90     90        49
EndTxn abort, version 1
    unknown                  49        49     49     49        49
    empty                    48         -      -     90        49
    empty, same producer     48        90     90     90        49
    empty, new producer      48        90     90     90        49
    ongoing                   0        90     90     90        49
    committed 1              48        90     90     90        49
    committed 2              48        90     90     90        49
    aborted 1                 0        90     90     90        49
    aborted 2                 0        90     90     90        49
    timed out                 0        90     90     90        49
    fenced                    0        90     90     90        49
    committing 1             48        90     90     90        49
    committing 2             48        90     90     90        49
    aborting 1               51        90     90     90        49
    aborting 2               51        90     90     90        49
    timing out               51        90     90     90        49
EndTxn commit, version 2
    unknown                  49        49     49     49        49
    empty                    48         -      -     90        49
    empty, same producer     48        90     90     90        49
    empty, new producer      48        90     90     90        49
    ongoing                  +1        90     90     90        49
    committed 1              48        +1     90     90        49
    committed 2              48        +1     90     90        49
    aborted 1                48        48     90     90        49
    aborted 2                48        48     90     90        49
    timed out                48        48     90     90        49
    fenced                   48        48     90     90        49
    committing 1             90        51     90     90        49
    committing 2             90        51     90     90        49
    aborting 1               90        48     90     90        49
    aborting 2               90        48     90     90        49
    timing out               90        48     90     90        49
EndTxn abort, version 2
    unknown                  49        49     49     49        49
    empty                    +1         -      -     90        49
    empty, same producer     +1        90     90     90        49
    empty, new producer      +1        90     90     90        49
    ongoing                  +1        90     90     90        49
    committed 1              +1        48     90     90        49
    committed 2              +1        48     90     90        49
    aborted 1                +1        +1     90     90        49
    aborted 2                +1        +1     90     90        49
    timed out                +1        +1     90     90        49
    fenced                   +1        +1     90     90        49
    committing 1             90        48     90     90        49
    committing 2             90        48     90     90        49
    aborting 1               90        51     90     90        49
    aborting 2               90        51     90     90        49
    timing out               90        51     90     90        49
AddPartitionsToTxn and AddOffsetsToTxn
    unknown                  49        49     49     49        49
    empty                     0         -      -     90        49
    empty, same producer      0        90     90     90        49
    empty, new producer       0        90     90     90        49
    ongoing                   0        90     90     90        49
    committed 1               0        90     90     90        49
    committed 2               0        90     90     90        49
    aborted 1                 0        90     90     90        49
    aborted 2                 0        90     90     90        49
    timed out                 0        90     90     90        49
    fenced                    0        90     90     90        49
    committing 1             51        90     90     90        49
    committing 2             51        90     90     90        49
    aborting 1               51        90     90     90        49
    aborting 2               51        90     90     90        49
    timing out               51        90     90     90        49
InitProducerId of a producer that goes on
    unknown                   0         0      0      0         0
    empty                    +1         -      -     90        90
    empty, same producer     +1        +1     90     90        90
    empty, new producer      +1        90     90     90        90
    ongoing                  51        51     51     51        90
    committed 1              +1        +1     90     90        90
    committed 2              +1        +1     90     90        90
    aborted 1                +1        +1     90     90        90
    aborted 2                +1        +1     90     90        90
    timed out                +1        +1     90     90        90
    fenced                   +1        +1     90     90        90
    committing 1             51        51     51     51        90
    committing 2             51        51     51     51        90
    aborting 1               51        51     51     51        90
    aborting 2               51        51     51     51        90
    timing out               51        51     51     51        90
InitProducerId of a new producer
    unknown                   0
    empty                    +1
    empty, same producer     +1
    empty, new producer      +1
    ongoing                  51
    committed 1              +1
    committed 2              +1
    aborted 1                +1
    aborted 2                +1
    timed out                +1
    fenced                   +1
    committing 1             51
    committing 2             51
    aborting 1               51
    aborting 2               51
    timing out               51
"""

#: Where we differ, by (call, state, epoch); "*" stands for all.
OURS = {
    # A repeated request is answered as soon as its outcome is decided: its client need not repeat it once more.
    ("EndTxn commit, version 1", "committing 1", "current"): "0",
    ("EndTxn abort, version 1", "aborting 1", "current"): "0",
    ("EndTxn commit, version 1", "committing 2", "current"): "0",
    ("EndTxn abort, version 1", "aborting 2", "current"): "0",
    ("EndTxn abort, version 1", "timing out", "current"): "0",
    ("EndTxn commit, version 2", "committing 2", "previous"): "+1",
    ("EndTxn abort, version 2", "aborting 2", "previous"): "+1",
    ("EndTxn abort, version 2", "timing out", "previous"): "+1",
    # A producer that ends an empty transaction at once after another waits for the markers, and is not fenced.
    ("EndTxn commit, version 2", "committing 2", "current"): "51",
    ("EndTxn abort, version 2", "committing 2", "current"): "51",
    ("EndTxn commit, version 2", "aborting 2", "current"): "51",
    ("EndTxn abort, version 2", "aborting 2", "current"): "51",
    ("EndTxn commit, version 2", "timing out", "current"): "51",
    ("EndTxn abort, version 2", "timing out", "current"): "51",
    ("EndTxn commit, version 2", "committing 1", "current"): "51",
    ("EndTxn abort, version 2", "committing 1", "current"): "51",
    ("EndTxn commit, version 2", "aborting 1", "current"): "51",
    ("EndTxn abort, version 2", "aborting 1", "current"): "51",
    # An epoch that InitProducerId ended is no repetition of an EndTxn, and its producer does not go on. Kafka keeps the
    # epoch of before the last InitProducerId through transactions of version 1.
    ("EndTxn commit, version 2", "committed 1", "previous"): "90",
    ("EndTxn abort, version 2", "committed 1", "previous"): "90",
    ("EndTxn commit, version 2", "aborted 1", "previous"): "90",
    ("EndTxn abort, version 2", "aborted 1", "previous"): "90",
    ("EndTxn commit, version 2", "committing 1", "previous"): "90",
    ("EndTxn abort, version 2", "committing 1", "previous"): "90",
    ("EndTxn commit, version 2", "aborting 1", "previous"): "90",
    ("EndTxn abort, version 2", "aborting 1", "previous"): "90",
    ("InitProducerId of a producer that goes on", "committed 1", "previous"): "90",
    ("InitProducerId of a producer that goes on", "aborted 1", "previous"): "90",
    # A producer that another one replaced learns no outcome, and does not go on, from the first moment.
    ("EndTxn commit, version 2", "fenced", "previous"): "90",
    ("EndTxn abort, version 2", "fenced", "previous"): "90",
    ("InitProducerId of a producer that goes on", "fenced", "previous"): "90",
    # A fenced producer neither aborts the open transaction of its successor nor waits for markers to learn that.
    ("InitProducerId of a producer that goes on", "ongoing", "previous"): "90",
    ("InitProducerId of a producer that goes on", "ongoing", "older"): "90",
    ("InitProducerId of a producer that goes on", "ongoing", "newer"): "90",
    **{
        ("InitProducerId of a producer that goes on", state, epoch): "90"
        for state in ("committing 1", "committing 2", "aborting 1", "aborting 2", "timing out")
        for epoch in ("previous", "older", "newer")
        if epoch != "previous" or state.endswith("1")
    },
}  # fmt: skip


class World:
    """A broker's handlers, and the coordinator's service with one shard. Requests do not wait for markers."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self._ids = count(5_000)
        self.machine = TransactionsStateMachine(lambda: next(self._ids))
        self.machine.loaded(self.now_ms)
        self.missing: list[WriteMarkers] = []
        self._service = TransactionsService(cast("Any", None), cast("Any", self), cast("Any", None), cast("Any", None))
        topics = {name: TopicImage(name, name.encode().ljust(16)[:16], (_PARTITION,))
                  for name in ("orders", "__consumer_offsets")}  # fmt: skip
        self._state = MetadataState()
        self._state.advance(
            MetadataImage(
                topics={each.topic_id: each for each in topics.values()},
                topic_ids={name: each.topic_id for name, each in topics.items()},
            ),
            MetadataDelta(0, 0),
        )

    # -- the service's runtime, and the handlers' upstream

    async def ask(self, request: object, within_s: float, **_: object) -> Any:
        decision = self.machine.handle(request, self.now_ms)
        self._keep(decision.pushes)
        if isinstance(decision.reply, HeadraceError):
            raise decision.reply
        return decision.reply

    async def coordinator(self, *asked: Any) -> Any:
        *_, method, request, _timeout_ms = asked
        return await getattr(self._service, method)(request, None)

    def _keep(self, pushes: tuple[object, ...]) -> None:
        self.missing += [push for push in pushes if isinstance(push, WriteMarkers)]

    # -- requests of a client

    def send(self, api: Api, version: int, **fields: Any) -> Any:
        call = Call(
            Client(host="10.0.0.1", listener="PLAINTEXT"),
            api,
            version,
            "",
            Cluster(self._state),
            cast("Any", self),
            KafkaSettings(),
        )
        body, answer = request_body(api, version), response_body(api, version)
        return answer.read(bytes(answer.write(_run(_HANDLERS[api](call, body.read(bytes(body.write(fields))))))))

    def init(self, who: ProducerIdentity | None, version: int = 5, timeout_ms: int = TIMEOUT_MS) -> Any:
        expected = {"producer_id": who.producer_id, "producer_epoch": who.epoch} if who else {}
        return self.send(
            Api.INIT_PRODUCER_ID, version, transactional_id="t", transaction_timeout=timeout_ms, **expected
        )

    def add(self, who: ProducerIdentity, version: int = 3) -> Any:
        return self.send(
            Api.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
        )

    def add_offsets(self, who: ProducerIdentity, version: int = 4) -> Any:
        fields = {"transactional_id": "t", "producer_id": who.producer_id, "producer_epoch": who.epoch}
        return self.send(Api.ADD_OFFSETS_TO_TXN, version, group_id="g", **fields)

    def end(self, who: ProducerIdentity, version: int, *, commit: bool) -> Any:
        fields = {"transactional_id": "t", "producer_id": who.producer_id, "producer_epoch": who.epoch}
        return self.send(Api.END_TXN, version, committed=commit, **fields)

    # -- states

    @property
    def current(self) -> ProducerIdentity:
        return self.machine.transactions["t"].owner if self.machine.transactions else ProducerIdentity(7, 3)

    def begin(self) -> None:
        """An open transaction of the third identity of a producer, so that there are former ones."""
        for who in (None, ProducerIdentity(5_000, 0), ProducerIdentity(5_000, 1)):
            self.init(who)
        self.add(self.current)

    def mark(self) -> None:
        for each in self.missing:
            self.machine.handle(MarkersWritten(each.transactional_id, each.identity, each.partitions), self.now_ms)
        self.missing.clear()

    def enter(self, state: str) -> None:
        kind, _, rest = state.partition(" ")
        if state == "unknown":
            return
        if state in ("empty", "empty, new producer"):
            for _ in range(1 if state == "empty" else 3):
                self.init(None)
        elif state == "empty, same producer":
            for who in (None, ProducerIdentity(5_000, 0), ProducerIdentity(5_000, 1)):
                self.init(who)
        else:
            self.begin()
            if kind in ("committed", "committing", "aborted", "aborting"):
                self.end(self.current, 3 if rest == "1" else 5, commit=kind.startswith("commit"))
            elif kind in ("timed", "timing"):
                self.now_ms += TIMEOUT_MS
                self._keep(self.machine.tick(self.now_ms).pushes)
            elif kind == "fenced":
                self.init(None)
            if not kind.endswith("ing"):
                self.mark()


def _run(handler: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as done:
        handler.send(None)
    return done.value.value


_PARTITION = PartitionImage(
    replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0, directories=(bytes(16),)
)
_HANDLERS: dict[Api, Any] = {
    Api.INIT_PRODUCER_ID: init_producer_id,
    Api.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    Api.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    Api.END_TXN: end_txn,
}
_EPOCHS: dict[str, Callable[[ProducerIdentity], ProducerIdentity]] = {
    "current": lambda who: who,
    "previous": lambda who: ProducerIdentity(who.producer_id, who.epoch - 1),
    "older": lambda who: ProducerIdentity(who.producer_id, who.epoch - 2),
    "newer": lambda who: ProducerIdentity(who.producer_id, who.epoch + 1),
    "stranger": lambda who: ProducerIdentity(who.producer_id + 123_456, who.epoch),
}
Ask = Callable[[World, ProducerIdentity], Any]
#: For each call of the table: the requests, each with whether its clients know PRODUCER_FENCED (KIP-588).
_ASKS: dict[str, list[tuple[Ask, bool]]] = {
    **{
        f"EndTxn {'commit' if commit else 'abort'}, version {version}": [
            (lambda world, who, number=number, commit=commit: world.end(who, number, commit=commit), number >= 2)
            for number in numbers
        ]
        for commit in (True, False)
        for version, numbers in ((1, (0, 1, 2, 3, 4)), (2, (5,)))
    },
    "AddPartitionsToTxn and AddOffsetsToTxn": [
        *((lambda world, who, number=number: world.add(who, number), number >= 2) for number in (0, 1, 2, 3)),
        *((lambda world, who, number=number: world.add_offsets(who, number), number >= 2) for number in (0, 1, 2, 4)),
    ],
    "InitProducerId of a producer that goes on": [
        (lambda world, who, number=number: world.init(who, number), number >= 4) for number in (3, 4, 5)
    ],
    "InitProducerId of a new producer": [
        (lambda world, who, number=number: world.init(None, number), True) for number in (0, 1, 2, 3, 4, 5)
    ],
}


def rows() -> list[tuple[str, str, str, str]]:
    """(call, state, epoch, Kafka's answer) of each cell."""
    found, call = [], ""
    for line in KAFKA.splitlines()[2:]:
        if not line.startswith(" "):
            call = line
            continue
        state, answers = line[:28].strip(), line[28:].split()
        found += [
            (call, state, epoch, answer) for epoch, answer in zip(_EPOCHS, answers, strict=False) if answer != "-"
        ]
    return found


@pytest.mark.parametrize("call", list(_ASKS))
def test_each_answer_is_kafkas_or_a_difference_that_has_a_reason(call: str) -> None:
    wrong = []
    cells = [row for row in rows() if row[0] == call]
    assert cells
    for _, state, epoch, kafkas in cells:
        expected = OURS.get((call, state, epoch), kafkas)
        for number, (ask, knows_fenced) in enumerate(_ASKS[call]):
            world = World()
            world.enter(state)
            who = _EPOCHS[epoch](world.current)
            seen = _seen(ask(world, who), who)
            known = FENCED_BEFORE_KIP_588 if expected == FENCED and not knows_fenced else expected
            if seen != known:
                wrong.append(f"{state}, {epoch}, request {number}: {seen}, expected {known}")
    assert not wrong, "\n".join(wrong)


def _seen(answer: Any, who: ProducerIdentity) -> str:
    if hasattr(answer, "results_by_topic_v3_and_below"):
        return str(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
    if answer.error_code or not hasattr(answer, "producer_id") or answer.producer_id != who.producer_id:
        return str(answer.error_code)
    return f"+{answer.producer_epoch - who.epoch}"


def test_every_difference_is_one() -> None:
    table = {row[:3]: row[3] for row in rows()}
    assert all(table[cell] != ours for cell, ours in OURS.items())
