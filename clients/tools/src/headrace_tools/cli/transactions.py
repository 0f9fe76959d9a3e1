"""``transactions list|describe|describe-producers|complete|abort|find-hanging``, modelled on kafka-transactions.sh."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import InvalidTxnStateError, UnknownTopicOrPartitionError
from headrace_core.plurals import counted
from headrace_core.sinks import parse_sink_transaction
from headrace_core.types import TopicPartition

from . import complete as completion
from .client import DEFAULT_BOOTSTRAP, GROUP_TIMEOUT_S, Bootstrap, GroupTimeout, admin, coordinator_timeout_s
from .group_lag import duration as in_words
from .output import Output, OutputFormat, note, print_json, print_table, show, show_rows, usage_of
from .times import duration

if TYPE_CHECKING:
    from headrace.transaction_models import ProducerState, TransactionDescription

Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Transactional ids.", autocompletion=completion.transactional_ids),
]
Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.", autocompletion=completion.topics)]
Partition = Annotated[int, typer.Option("-p", "--partition", min=0, help="The partition.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Transactions: list, describe, complete, abort, find hanging transactions.", no_args_is_help=True
    )
    group.callback()(_group)
    group.command("list")(list_transactions)
    group.command("describe")(describe)
    group.command("describe-producers")(describe_producers)
    group.command("complete")(complete)
    group.command("abort")(abort)
    group.command("find-hanging")(find_hanging)
    app.add_typer(group, name="transactions")


def _group() -> None:
    """Show transactions and their producers, commit or abort prepared transactions, end transactions that delay
    readers."""


def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE,...",
            help="Show only this state: empty, ongoing, prepared, prepare-commit, prepare-abort, complete-commit, "
            "complete-abort; repeatable.",
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", min=0, help="Show only this producer id; repeatable.")
    ] = None,
    open_for: Annotated[
        float | None, duration("--open-for", help="Show only transactions that have been open for at least this time.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Show only transactional ids that begin with this text.")
    ] = "",
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the transactional ids of the cluster.

    \b
    Examples:
      headrace transactions list
      headrace transactions list --state ongoing,prepared --open-for 15m
      headrace transactions list -o json        [{"transactional_id", "coordinator_id", "producer_id", "state",
                                                  "started_at_ms"}]
    """
    from headrace.transaction_models import TRANSACTION_STATES

    states = [part.strip().lower() for given in state or () for part in given.split(",") if part.strip()]
    wrong = [each for each in states if each not in TRANSACTION_STATES]
    if wrong:
        raise typer.BadParameter(
            f"transaction state {wrong[0]!r}: must be one of {', '.join(TRANSACTION_STATES)}", param_hint="--state"
        )
    with admin(bootstrap) as client:
        found = client.list_transactions(
            states,
            producer_ids=producer_id,
            open_for_ms=None if open_for is None else round(open_for * 1_000),
            prefix=prefix,
            timeout=coordinator_timeout_s(client, timeout),
        )
    if output is OutputFormat.JSON:
        names = ("transactional_id", "coordinator_id", "producer_id", "state", "started_at_ms")
        print_json([{name: getattr(each, name) for name in names} for each in found])
        return
    print_table(
        ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE", "OPEN-FOR"),
        [
            (each.transactional_id, each.coordinator_id, each.producer_id, each.state, _age(each.started_at_ms))
            for each in found
        ],
    )


def describe(
    ids: Ids,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the state, the producer, the times and the partitions of transactional ids, and the tokens of prepared
    transactions. For a transaction that is being committed or aborted, only the partitions without a marker are shown.

    \b
    Examples:
      headrace transactions describe payments-7
      headrace transactions describe payments-7 payments-8 -o json
    """
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        found = client.describe_transactions(ids, timeout=timeout)
    if output is OutputFormat.JSON:
        print_json([_document(each) for each in found])
        return
    print_table(
        ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "EPOCH", "STATE", "TIMEOUT", "STARTED", "OPEN-FOR",
         "PARTITIONS"),
        [
            (
                each.transactional_id,
                each.coordinator_id,
                each.producer_id,
                each.producer_epoch,
                each.state,
                None if each.timeout_ms is None else in_words(each.timeout_ms),
                _time(each.started_at_ms),
                _age(each.started_at_ms),
                ",".join(map(str, each.partitions)) or None,
            )
            for each in found
        ],
    )  # fmt: skip
    for each in found:
        if each.token is not None:
            note(_prepared(each))


def _prepared(described: TransactionDescription) -> str:
    """The text that says how to end a prepared transaction."""
    from ..sink_decisions import how_decided

    part = parse_sink_transaction(described.transactional_id)
    if part is not None:
        return f"{described.transactional_id} is prepared: {how_decided(part)}"
    return (
        f"{described.transactional_id} is prepared: `headrace transactions complete {described.token} --commit` or "
        "--abort ends it"
    )


def _document(described: TransactionDescription) -> dict[str, Any]:
    names = (
        "transactional_id", "coordinator_id", "state", "producer_id", "producer_epoch", "timeout_ms", "started_at_ms",
        "updated_at_ms", "transaction_version",
    )  # fmt: skip
    return {name: getattr(described, name) for name in names} | {
        "partitions": [{"topic": each.topic, "partition": each.partition} for each in described.partitions],
        "token": None if described.token is None else str(described.token),
    }


def describe_producers(
    topic: Topic,
    partition: Partition,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the producers that a partition's leader knows, and the first offsets of their open transactions.

    \b
    Examples:
      headrace transactions describe-producers -t orders -p 0
    """
    where = TopicPartition(topic, partition)
    with admin(bootstrap) as client:
        found: list[ProducerState] = client.describe_producers([where], timeout=timeout)[where]
    show_rows(
        output,
        ("PRODUCER-ID", "EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP", "COORDINATOR-EPOCH", "TRANSACTION-START-OFFSET"),
        [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp_ms": each.last_timestamp_ms,
                "coordinator_epoch": each.coordinator_epoch,
                "transaction_start_offset": each.transaction_start_offset,
            }
            for each in found
        ],
    )


def complete(
    token: Annotated[
        str,
        typer.Argument(metavar="TOKEN", help="The token that prepare() returned: PRODUCER_ID:EPOCH:TRANSACTIONAL_ID."),
    ],
    commit: Annotated[bool, typer.Option("--commit/--abort", help="Commit or abort the prepared transaction.")],
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Commit or abort a prepared transaction (two-phase commit), and wait until readers see the result. The command may
    be repeated with the same outcome (commit or abort).

    \b
    Examples:
      headrace transactions complete 4000:7:payments-7 --commit
      headrace transactions complete 4000:7:payments-7 --abort
    """
    from headrace import TransactionToken

    with usage_of("TOKEN"):
        TransactionToken.parse(token)
    with admin(bootstrap) as client:
        client.complete_transaction(token, commit=commit, timeout=coordinator_timeout_s(client, timeout))
    done = "committed" if commit else "aborted"
    show(output, {"token": token, "outcome": done}, f"{done} the transaction {token}")


def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The transactional id of an open or prepared transaction.",
            autocompletion=completion.transactional_ids,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", help="The topic of a hanging transaction.", autocompletion=completion.topics),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="The partition of a hanging transaction.")
    ] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="The first offset of the hanging transaction.")
    ] = None,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Abort the transaction of a transactional id and raise its producer's epoch. The command can also end a hanging
    transaction in one partition; `headrace transactions find-hanging` shows hanging transactions.

    An open transaction that is not prepared ends on its own after its transaction.timeout.ms. If the producer tries to
    commit after the abort, it gets TRANSACTION_ABORTABLE.

    \b
    Examples:
      headrace transactions abort payments-7
      headrace transactions abort -t orders -p 0 --start-offset 4711
    """
    hanging = (topic, partition, start_offset)
    if (transactional_id is None) == (hanging == (None, None, None)):
        raise typer.BadParameter(
            "pass a transactional id; for a hanging transaction pass -t, -p and --start-offset", param_hint="ID"
        )
    if transactional_id is not None:
        with admin(bootstrap) as client:
            client.abort_transaction(transactional_id, timeout=coordinator_timeout_s(client, timeout))
        text = f"aborted the transaction of {transactional_id}"
        show(output, {"transactional_id": transactional_id, "outcome": "aborted"}, text)
        return
    if topic is None or partition is None or start_offset is None:
        raise typer.BadParameter("a hanging transaction needs -t, -p and --start-offset", param_hint="-t")
    where = TopicPartition(topic, partition)
    with admin(bootstrap) as client:
        producers = client.describe_producers([where], timeout=timeout)[where]
        ids = [each.producer_id for each in producers if each.transaction_start_offset == start_offset]
        if not ids:
            offsets = sorted(
                each.transaction_start_offset for each in producers if each.transaction_start_offset is not None
            )
            raise InvalidTxnStateError(
                f"no transaction in {where} begins at offset {start_offset}; open transactions begin at: "
                f"{', '.join(map(str, offsets)) or 'none'}"
            )
        client.abort_hanging_transaction(where, producer_id=ids[0], start_offset=start_offset, timeout=timeout)
    show(
        output,
        {
            "topic": topic,
            "partition": partition,
            "producer_id": ids[0],
            "start_offset": start_offset,
            "outcome": "aborted",
        },
        f"ended the transaction of producer {ids[0]} in {where} with an abort marker",
    )


def find_hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option("-t", "--topic", help="Check only this topic; repeatable.", autocompletion=completion.topics),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="Check only this partition of the topic.")
    ] = None,
    broker_id: Annotated[
        int | None,
        typer.Option(
            "--broker-id", help="Check only partitions that this broker leads.", autocompletion=completion.brokers
        ),
    ] = None,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Find hanging transactions. A hanging transaction is open in a partition, but its coordinator does not know it.
    Readers with read_committed wait for a hanging transaction forever. End a hanging transaction with `headrace
    transactions abort -t TOPIC -p N --start-offset OFFSET`. Exit code 1: some partitions could not be checked.

    \b
    Examples:
      headrace transactions find-hanging
      headrace transactions find-hanging -t orders -p 0
      headrace transactions find-hanging -o json        [{"topic", "partition", "producer_id", "producer_epoch",
                                                          "start_offset", "last_timestamp_ms", "coordinator_epoch",
                                                          "transactional_id"}]
    """
    from ..hanging import hanging_transactions, may_have_hanging

    if partition is not None and len(topic or ()) != 1:
        raise typer.BadParameter("-p needs one topic: pass -t", param_hint="-p")
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        topics = client.describe_topics(topic, timeout=timeout)
        if partition is not None and all(part.partition != partition for part in topics[0].partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {topics[0].name!r} has no partition {partition}; it has "
                f"{counted(len(topics[0].partitions), 'partition')}"
            )
        wanted = [
            TopicPartition(each.name, part.partition)
            for each in topics
            if may_have_hanging(each)
            for part in each.partitions
            if partition in (None, part.partition) and broker_id in (None, part.leader)
        ]
        found, gap = hanging_transactions(client, wanted, timeout_s=timeout)
    names = (
        "topic", "partition", "producer_id", "producer_epoch", "start_offset", "last_timestamp_ms",
        "coordinator_epoch", "transactional_id",
    )  # fmt: skip
    rows = [{name: getattr(each, name) for name in names} for each in found]
    show_rows(output, [name.upper().replace("_", "-").removesuffix("-MS") for name in names], rows)
    if gap is not None:
        note(f"not checked: {gap[0]}: {gap[1]}")
        raise typer.Exit(1)


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _age(since_ms: int | None) -> str | None:
    """Milliseconds since ``started_at_ms``, by this machine's clock."""
    return None if since_ms is None else in_words(max(0, round(time.time() * 1000) - since_ms))
