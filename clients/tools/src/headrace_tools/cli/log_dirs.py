"""The commands ``log-dirs describe`` and ``log-dirs move``: log directories of brokers, and moves of replicas between
them."""

from __future__ import annotations

import functools
import time
from typing import Annotated, Any

import typer

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, print_json, print_table
from .progress import HowFar, progress

#: Polling interval of --wait (seconds).
_LOOK_S = 0.2


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Describe the log directories of brokers, and move replicas between them.", no_args_is_help=True
    )
    group.command("describe")(describe)
    group.command("move")(move)
    app.add_typer(group, name="log-dirs")


def describe(
    broker: Annotated[
        list[int] | None,
        typer.Option(
            "--broker",
            metavar="ID",
            help="Show only this broker; repeatable. Default: every live broker.",
            autocompletion=complete.brokers,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Show only this topic; repeatable. Default: every topic.",
            autocompletion=complete.topics,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the log directories of each broker: free space, failures, and replicas.

    \b
    Examples:
      headrace log-dirs describe
      headrace log-dirs describe --broker 1 --topic orders -o json
    """
    with admin(bootstrap) as client:
        found = client.describe_log_dirs(broker or None, topics=topic or None)
    rows = [
        {"broker": broker_id, "directories": [_directory(each) for each in directories]}
        for broker_id, directories in found.items()
    ]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    every = [each for directories in found.values() for each in directories]
    print_table(
        ("BROKER", "DIRECTORY", "ID", "REPLICAS", "BYTES", "USABLE BYTES", "TOTAL BYTES", "STATE"),
        [
            (
                each.broker_id,
                each.path,
                each.directory_id_text or None,
                len(each.replicas),
                sum(replica.size_bytes for replica in each.replicas),
                each.usable_bytes,
                each.total_bytes,
                _state(each),
            )
            for each in every
        ],
    )
    for each in every:
        if each.error is not None:
            print(f"\nbroker {each.broker_id}, {each.path}: {each.error.message} [{each.error.code}]", flush=True)
        for replica in each.replicas:
            if replica.error is not None:
                print(
                    f"\nbroker {each.broker_id}, {each.path}, {replica.topic}-{replica.partition} is not served: "
                    f"{replica.error.message} [{replica.error.code}]",
                    flush=True,
                )
    if not topic:
        return
    print(flush=True)
    print_table(
        ("BROKER", "DIRECTORY", "TOPIC", "PARTITION", "BYTES", "LAG", "FUTURE", "ERROR"),
        [
            (
                each.broker_id,
                each.path,
                replica.topic,
                replica.partition,
                replica.size_bytes,
                replica.offset_lag,
                "yes" if replica.is_future else "",
                "" if replica.error is None else replica.error.code,
            )
            for each in every
            for replica in each.replicas
        ],
    )


def move(
    replica: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC-PARTITION", help="The partition, such as orders-0.", autocompletion=complete.partitions
        ),
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="DIR", help="The directory to move the replica to: one of the broker's log.dirs."),
    ],
    broker: Annotated[int, typer.Option("--broker", metavar="ID", help="The broker.", autocompletion=complete.brokers)],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the replica has moved; show progress on stderr.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Move a broker's replica of a partition to another log directory of the same broker, while clients use it.

    \b
    Examples:
      headrace log-dirs move orders-0 --to /disk2/headrace --broker 1 --wait
    """
    from headrace import TopicPartitionReplica

    topic, _, number = replica.rpartition("-")
    if not topic or not number.isdecimal():
        raise typer.BadParameter(f"{replica!r}: must be TOPIC-PARTITION, such as orders-0")
    wanted = TopicPartitionReplica(topic, int(number), broker)
    with admin(bootstrap) as client:
        client.alter_replica_log_dirs({wanted: to})
        if wait:
            _wait(client, wanted, to)
    row = {"topic": topic, "partition": int(number), "broker": broker, "to": to, "moved": wait}
    if output is OutputFormat.JSON:
        print_json(row)
    elif wait:
        print(f"moved {replica} on broker {broker} to {to}")
    else:
        print(
            f"moving {replica} on broker {broker} to {to}; `headrace log-dirs describe -t {topic}` shows the progress"
        )


def _wait(client: Any, wanted: Any, to: str) -> None:
    """Wait until the replica is in the log directory ``to``. Raises ReplicaNotAvailableError when the move to ``to`` is
    no longer running."""
    from headrace_core.errors import ReplicaNotAvailableError

    with progress() as shown:
        while True:
            directories = client.describe_log_dirs([wanted.broker_id], topics=[wanted[:2]])[wanted.broker_id]
            now, future = _whereabouts(directories, is_future=False), _whereabouts(directories, is_future=True)
            if future is None:
                if now is not None and now[1].error is not None:
                    raise now[1].error
                if now is not None and _same_path(now[0], to):
                    return
                where = "is in no directory" if now is None else f"is still in {now[0]}"
                raise ReplicaNotAvailableError(
                    f"cannot move {wanted.topic}-{wanted.partition} to {to}: the move has ended, but the replica "
                    f"{where}; the log file of broker {wanted.broker_id} says why"
                )
            has, size = future[1].size_bytes, 0 if now is None else now[1].size_bytes
            words = f"{has:,} of {size:,} bytes, {future[1].offset_lag:,} offsets behind"
            shown.at(functools.partial(HowFar, has, size, words))
            time.sleep(_LOOK_S)


def _whereabouts(directories: Any, *, is_future: bool) -> tuple[str, Any] | None:
    found = ((each.path, item) for each in directories for item in each.replicas if item.is_future == is_future)
    return next(found, None)


def _same_path(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _state(directory: Any) -> str:
    damaged = sum(replica.error is not None for replica in directory.replicas)
    if directory.error is not None:
        return "offline"
    return f"online, {damaged} not served" if damaged else "online"


def _error(error: Any) -> dict[str, str] | None:
    return None if error is None else {"code": error.code, "message": error.message}


def _directory(directory: Any) -> dict[str, Any]:
    return {
        "path": directory.path,
        "directory_id": directory.directory_id_text or None,
        "error": _error(directory.error),
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
        "replicas": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "size_bytes": each.size_bytes,
                "offset_lag": each.offset_lag,
                "is_future": each.is_future,
                "error": _error(each.error),
            }
            for each in directory.replicas
        ],
    }
