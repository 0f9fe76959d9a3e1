"""The commands ``partitions reassign``, ``elect`` and ``list-reassignments``, like kafka-reassign-partitions and
kafka-leader-election."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import HeadraceError, InvalidArgumentError, NoReassignmentInProgressError
from headrace_core.plurals import counted

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, note, print_json, print_table
from .progress import HowFar, progress

if TYPE_CHECKING:
    from headrace.cluster_models import PartitionReassignment
    from headrace_core.types import TopicPartition

#: Polling interval of --wait and --watch (seconds).
_LOOK_S = 0.5
_WATCH_S = 1.0
#: How much older than the controller's metadata a broker's may be after a move, in seconds.
_METADATA_S = 5.0
#: Timeout in seconds of a request whose answer only completes a message.
_ANSWER_S = 5.0
#: Maximum number of partitions that an error message names.
_NAMED_MAX = 5
_PARTITION_HELP = "TOPIC-PARTITION, such as orders-0."

_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="Select all partitions of a topic; repeatable.",
        autocompletion=complete.topics,
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Move replicas between brokers, and elect leaders.", no_args_is_help=True)
    group.command("reassign")(reassign)
    group.command("list-reassignments")(list_reassignments)
    group.command("elect")(elect)
    app.add_typer(group, name="partitions")


# -- reassign


def reassign(
    moves: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC-PARTITION=BROKER,...]...",
            help="The partition and its new replicas, preferred leader first.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A plan in kafka-reassign-partitions' JSON; - for stdin.")
    ] = None,
    topic: _Topics = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="With --topic: the number of replicas per partition."),
    ] = None,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Cancel the running and queued moves of partitions such as orders-0, or of --topic."
        ),
    ] = False,
    throttle: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="BYTES/S", help="Limit the copying per broker until all moves are done; 0 removes the limit."
        ),
    ] = None,
    keep_factor: Annotated[
        bool,
        typer.Option("--keep-replication-factor", help="Refuse moves that change the number of replicas (KIP-860)."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the plan, in the format of --file; change nothing.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            "-w",
            help="Wait until all moves are done; show progress on stderr. Fails if another command cancels a move.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Move partitions to other brokers while clients use them, or cancel running moves.

    \b
    Examples:
      headrace partitions reassign orders-0=2,3,1 orders-1=3,1,2 --throttle 50000000 --wait
      headrace partitions reassign --topic orders -r 3 --wait
      headrace partitions reassign --file plan.json
      headrace partitions reassign --cancel orders-0
      headrace partitions reassign --throttle 0
    """
    _check_usage(moves, file, topic, replication, cancel, throttle)
    with admin(bootstrap) as client:
        wanted: dict[TopicPartition, list[int] | None] = {}
        if cancel:
            wanted = dict.fromkeys(_cancelled(client, moves, topic))
        elif replication is not None:
            wanted = dict(_with_factor(client, topic or [], replication))
        else:
            wanted = dict(_plan(file) if file is not None else map(_move, moves or ()))
        if dry_run:
            print_json(_kafka_plan(wanted))
            return
        try:
            client.alter_partition_reassignments(
                wanted, throttle_bytes_per_s=throttle, allow_replication_factor_change=not keep_factor
            )
        except HeadraceError:
            _note_under_way(client, wanted)
            raise
        if wait:
            _wait(client, wanted)
    if output is OutputFormat.JSON:
        plan = [
            {"topic": each.topic, "partition": each.partition, "replicas": replicas}
            for each, replicas in wanted.items()
        ]
        print_json({"reassignments": plan, "throttle_bytes_per_s": throttle, "done": wait})
        return
    count = counted(len(wanted), "partition")
    if cancel:
        print(f"cancelled the reassignment of {count}")
    elif wanted:
        print(
            f"moved {count}" if wait else f"moving {count}; `headrace partitions list-reassignments` shows the progress"
        )
    if throttle is not None and not (wait and throttle):  # the throttle ends with the last move
        print("removed the throttle" if throttle == 0 else f"each broker copies at most {throttle:,} bytes a second")


def _check_usage(
    moves: Sequence[str] | None,
    file: Path | None,
    topic: Sequence[str] | None,
    replication: int | None,
    cancel: bool,
    throttle: int | None,
) -> None:
    if not (moves or file or topic or throttle is not None):
        raise typer.BadParameter("nothing to do: pass moves such as orders-0=2,3,1, --file, or --topic with -r")
    if bool(moves) + bool(file) + (bool(topic) and not cancel) > 1:
        raise typer.BadParameter("pass either moves, --file or --topic")
    if cancel and (file or replication is not None):
        raise typer.BadParameter("--cancel takes only partitions or --topic", param_hint="--cancel")
    if bool(topic) != (replication is not None) and not cancel:
        raise typer.BadParameter("--topic and --replication-factor must be passed together")


def _move(text: str) -> tuple[TopicPartition, list[int]]:
    name, equals, brokers = text.partition("=")
    try:
        replicas = [int(each) for each in brokers.split(",")] if equals else []
    except ValueError:
        replicas = []
    if not replicas:
        raise typer.BadParameter(f"{text!r}: must be TOPIC-PARTITION=BROKER,..., such as orders-0=2,3,1")
    return _partition(name), replicas


def _partition(text: str) -> TopicPartition:
    from headrace import TopicPartition

    topic, _, number = text.rpartition("-")
    if not topic or not number.isdecimal():
        raise typer.BadParameter(f"{text!r}: must be {_PARTITION_HELP}")
    return TopicPartition(topic, int(number))


def _named(client: Any, partitions: Iterable[str] | None, topics: Sequence[str] | None) -> list[TopicPartition]:
    from headrace import TopicPartition

    found = [_partition(each) for each in partitions or ()]
    if topics:
        found += [
            TopicPartition(topic.name, each.partition)
            for topic in client.describe_topics(topics)
            for each in topic.partitions
        ]
    return list(dict.fromkeys(found))


def _note_under_way(client: Any, wanted: Iterable[TopicPartition]) -> None:
    """After an error, name the moves that have begun or go on: the error names only the refused ones."""
    try:
        moving = sorted(client.list_partition_reassignments(list(wanted), timeout=_ANSWER_S))
    except HeadraceError:
        return
    if moving:
        more = f" and {len(moving) - _NAMED_MAX} more" if len(moving) > _NAMED_MAX else ""
        note(f"running or queued: {', '.join(map(str, moving[:_NAMED_MAX]))}{more}")


def _cancelled(client: Any, partitions: Iterable[str] | None, topics: Sequence[str] | None) -> Iterable[TopicPartition]:
    """The named partitions, and those of ``topics`` that move. Raises NoReassignmentInProgressError if there are
    none."""
    moving = client.list_partition_reassignments(_named(client, None, topics)) if topics else {}
    found = dict.fromkeys([*_named(client, partitions, None), *sorted(moving)])
    if not found:
        raise NoReassignmentInProgressError(
            f"cannot cancel: no partition of {', '.join(topics or ())} is being reassigned"
        )
    return found


def _plan(file: Path) -> list[tuple[TopicPartition, list[int]]]:
    """Read a plan in the form ``{"version": 1, "partitions": [{"topic", "partition", "replicas"}]}``. Raises
    InvalidArgumentError."""
    from headrace import TopicPartition

    try:
        text = typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
        items = json.loads(text)["partitions"]
        found = [
            (TopicPartition(str(item["topic"]), int(item["partition"])), [int(each) for each in item["replicas"]])
            for item in items
        ]
        if any(not isinstance(item["replicas"], list) for item in items):
            raise TypeError("replicas must be a list")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidArgumentError(
            f'{file}: must be {{"version": 1, "partitions": [{{"topic", "partition", "replicas"}}]}} ({error!r})'
        ) from None
    if len(dict(found)) != len(found):
        raise InvalidArgumentError(f"{file}: a partition is named twice; name each partition once")
    return found


def _kafka_plan(wanted: dict[TopicPartition, list[int] | None]) -> dict[str, Any]:
    moves = ((each, replicas) for each, replicas in wanted.items() if replicas)
    return {
        "version": 1,
        "partitions": [
            {"topic": each.topic, "partition": each.partition, "replicas": replicas} for each, replicas in moves
        ],
    }


def _with_factor(client: Any, topics: Sequence[str], factor: int) -> list[tuple[TopicPartition, list[int]]]:
    """New replicas for each partition, so that it has ``factor`` replicas: first its current replicas, then the least
    loaded brokers."""
    from headrace import TopicPartition

    every = client.describe_topics()
    brokers = [each for each in client.describe_cluster().brokers if not each.draining]
    if factor > len(brokers):
        raise InvalidArgumentError(
            f"--replication-factor {factor}: {counted(len(brokers), 'broker')} can take replicas; start more brokers"
        )
    load = {each.broker_id: 0 for each in brokers}
    for topic in every:
        for each in topic.partitions:
            for replica in each.replicas:
                load[replica] = load.get(replica, 0) + 1
    candidates = {each.broker_id: each.rack for each in brokers}
    moves = []
    for topic in client.describe_topics(topics):
        for each in topic.partitions:
            replicas = targets(list(each.replicas), factor, load, candidates)
            for replica in replicas:
                load[replica] += replica not in each.replicas
            if replicas != list(each.replicas):
                moves.append((TopicPartition(topic.name, each.partition), replicas))
    return moves


def targets(replicas: list[int], factor: int, load: dict[int, int], racks: dict[int, str]) -> list[int]:
    """Cut ``replicas`` to ``factor``, or extend them by brokers from ``racks``. Brokers in racks without a replica come
    first, then the brokers with the least ``load``."""
    chosen = replicas[:factor]
    while len(chosen) < factor:
        taken = {racks.get(each, "") for each in chosen} - {""}
        free = [each for each in racks if each not in chosen]
        chosen.append(min(free, key=lambda each: (racks[each] in taken, load[each], each)))
    return chosen


# -- progress


def list_reassignments(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC-PARTITION]...", help="Default: all.", autocompletion=complete.partitions),
    ] = None,
    topic: _Topics = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Repeat every second until no move is left; with -o json one document per line."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the reassignments that are running or queued, and how much of the data each has copied.

    \b
    Examples:
      headrace partitions list-reassignments
      headrace partitions list-reassignments --watch
      headrace partitions list-reassignments -t orders -o json
    """
    with admin(bootstrap) as client:
        wanted = _named(client, partitions, topic) if partitions or topic else None
        while True:
            under_way = client.list_partition_reassignments(wanted)
            _show(under_way, _copied(client, under_way), output)
            if not watch or not under_way:
                return
            time.sleep(_WATCH_S)


def _show(
    under_way: dict[TopicPartition, PartitionReassignment],
    copied: dict[TopicPartition, tuple[int, int]],
    output: OutputFormat,
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(each.replicas),
            "adding_replicas": list(each.adding_replicas),
            "removing_replicas": list(each.removing_replicas),
            "waits": each.waits,
            "copied_bytes": copied.get(partition, (None, None))[0],
            "total_bytes": copied.get(partition, (None, None))[1],
        }
        for partition, each in sorted(under_way.items())
    ]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    if not rows:
        print("no reassignment is under way", flush=True)
        return
    print_table(
        ("PARTITION", "REPLICAS", "ADDING", "REMOVING", "COPIED BYTES", "OF", "STATE"),
        [
            (
                f"{row['topic']}-{row['partition']}",
                _ids(row["replicas"]),
                _ids(row["adding_replicas"]),
                _ids(row["removing_replicas"]),
                row["copied_bytes"],
                row["total_bytes"],
                "waits" if row["waits"] else "copies" if row["adding_replicas"] else "ends",
            )
            for row in rows
        ],
    )


def _ids(brokers: Iterable[int]) -> str | None:
    return ",".join(map(str, brokers)) or None


def _copied(
    client: Any, under_way: dict[TopicPartition, PartitionReassignment]
) -> dict[TopicPartition, tuple[int, int]]:
    """(copied, total) bytes of the added replicas; partitions of unknown size are left out."""
    busy = {partition: each for partition, each in under_way.items() if each.adding_replicas and not each.waits}
    brokers = sorted({broker for each in busy.values() for broker in each.replicas})
    sizes: dict[tuple[TopicPartition, int], int] = {}
    if busy:
        from headrace import TopicPartition

        try:
            found = client.describe_log_dirs(brokers, topics=list(busy), timeout=5)
        except HeadraceError:  # a broker is down, so its progress is unknown
            return {}
        for broker, directories in found.items():
            for directory in directories:
                for replica in directory.replicas:
                    if not replica.is_future:
                        sizes[TopicPartition(replica.topic, replica.partition), broker] = replica.size_bytes
    copied = {}
    for partition, each in busy.items():
        whole = max((sizes.get((partition, broker), 0) for broker in each.replicas), default=0)
        has = sum(min(sizes.get((partition, broker), 0), whole) for broker in each.adding_replicas)
        copied[partition] = (has, whole * len(each.adding_replicas))
    return copied


def _wait(client: Any, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Wait until no partition in ``wanted`` moves. Raises NoReassignmentInProgressError if a partition then has other
    replicas than wanted: another command cancelled or replaced its move. None as the wanted replicas: any replicas."""
    stopped_at: float | None = None
    with progress(draw_s=1.0) as shown:
        while True:
            under_way = client.list_partition_reassignments(list(wanted))
            if under_way:
                stopped_at = None
                shown.at(functools.partial(_how_far, client, under_way, len(wanted)))
            elif not (unmoved := _unmoved(client, wanted)):
                return
            else:
                # The controller lists the moves, and a broker describes the topics: its metadata may be a little older.
                stopped_at = time.monotonic() if stopped_at is None else stopped_at
                if time.monotonic() - stopped_at >= _METADATA_S:
                    raise NoReassignmentInProgressError(_why_unmoved(unmoved, len(wanted)))
            time.sleep(_LOOK_S)


def _unmoved(
    client: Any, wanted: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that have other replicas than wanted, with their replicas."""
    from headrace import TopicPartition

    moved = {each: replicas for each, replicas in wanted.items() if replicas is not None}
    if not moved:
        return {}
    topics = client.describe_topics(sorted({each.topic for each in moved}))
    now = {TopicPartition(topic.name, each.partition): each.replicas for topic in topics for each in topic.partitions}
    return {each: now[each] for each, replicas in sorted(moved.items()) if now[each] != tuple(replicas)}


def _why_unmoved(unmoved: Mapping[TopicPartition, Sequence[int]], total: int) -> str:
    named = [f"{each} has the replicas {_ids(replicas)}" for each, replicas in unmoved.items()]
    more = [f"and {len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    return (
        f"{len(unmoved)} of {counted(total, 'move')} ended without effect, because another command cancelled or "
        f"replaced it: {', '.join(named[:_NAMED_MAX] + more)}"
    )


def _how_far(client: Any, under_way: dict[TopicPartition, PartitionReassignment], total: int) -> HowFar:
    waiting = sum(each.waits for each in under_way.values())
    copied = _copied(client, under_way).values()
    has, whole = sum(each[0] for each in copied), sum(each[1] for each in copied)
    done, moving = total - len(under_way), len(under_way) - waiting
    # The progress is counted in partitions, because the sizes of queued partitions are unknown. The text adds the bytes
    # of the partitions that move.
    return HowFar(
        done + (has / whole * moving if whole else 0.0),
        total,
        f"{done} of {counted(total, 'partition')} done, {moving} moving ({has:,} of {whole:,} bytes), {waiting} wait",
    )


# -- elections


def elect(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC-PARTITION]...", help=_PARTITION_HELP, autocompletion=complete.partitions),
    ] = None,
    topic: _Topics = None,
    every: Annotated[bool, typer.Option("--all", help="Elect leaders for all partitions that need one.")] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Elect a replica that is not in sync for partitions without a leader: LOSES RECORDS."
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Elect the preferred leader (the first replica) of partitions; with --unclean, elect a leader for partitions that
    have none.

    \b
    Examples:
      headrace partitions elect --all
      headrace partitions elect orders-0 orders-3
      headrace partitions elect --unclean orders-0
    """
    if bool(partitions or topic) == every:
        raise typer.BadParameter("pass partitions, --topic or --all; --all cannot be combined with the others")
    with admin(bootstrap) as client:
        wanted = None if every else _named(client, partitions, topic)
        outcome = client.elect_leaders("unclean" if unclean else "preferred", wanted)
    rows: list[dict[str, Any]] = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "elected": error is None,
            "error": None if error is None else {"code": error.code, "message": error.message},
        }
        for partition, error in sorted(outcome.items())
    ]
    failed = [error for error in outcome.values() if error is not None and error.code != "ELECTION_NOT_NEEDED"]
    if output is OutputFormat.JSON:
        print_json(rows)
    else:
        print(f"elected {counted(sum(row['elected'] for row in rows), 'leader')}", flush=True)
        for row in rows:
            if row["error"] is not None:
                error = row["error"]
                note(f"headrace: {row['topic']}-{row['partition']}: {error['message']} [{error['code']}]")
    if failed:
        raise typer.Exit(1)
