"""``topics create|list|describe|alter|delete|offsets``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace_core.errors import HeadraceError
from headrace_core.plurals import counted

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .configs import value_after_reset, what_holds
from .output import Output, OutputFormat, key_values, note, print_json, print_table, show, tell_notes

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", autocompletion=complete.topics)]
_Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="A configuration key of the topic, such as retention.ms=7d; repeatable.",
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Create, list, describe, alter and delete topics; show their offsets.", no_args_is_help=True
    )
    group.command("create")(create)
    group.command("list")(list_topics)
    group.command("describe")(describe)
    group.command("alter")(alter)
    group.command("delete")(delete)
    group.command("offsets")(offsets)
    app.add_typer(group, name="topics")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", help="Number of partitions; default: the cluster's num.partitions."),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            help="Replicas per partition; default: the cluster's default.replication.factor.",
        ),
    ] = None,
    config: _Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed also if the topic already exists.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Create a topic.

    \b
    Examples:
      headrace topics create orders -p 6
      headrace topics create clicks -p 12 -c retention.ms=1d -c log.flush=os
    """
    from headrace import NewTopic
    from headrace.errors import TopicAlreadyExistsError

    topic = NewTopic(name, partitions, replication, key_values(config or (), "--config"))
    with admin(bootstrap) as client:
        try:
            (made,) = client.create_topics([topic])
            tell_notes("topic", topic.config)
            row = {
                "name": made.name,
                "topic_id": _id(made.topic_id),
                "partitions": made.partitions,
                "replication_factor": made.replication_factor,
                "created": True,
            }
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            row = {**_summary(client.describe_topics([name])[0]), "created": False}
    text = f"{name} ({counted(row['partitions'], 'partition')}, replication factor {row['replication_factor']})"
    show(output, row, f"created topic {text}" if row["created"] else f"topic {text} already exists")


def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List topics.

    \b
    Examples:
      headrace topics list
      headrace topics list -o json         [{"name", "topic_id", "internal", "partitions", "replication_factor"}]
    """
    with admin(bootstrap) as client:
        rows = [_summary(topic) for topic in client.describe_topics() if internal or not topic.internal]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    print_table(
        ("TOPIC", "PARTITIONS", "REPLICAS"),
        [(row["name"], row["partitions"], row["replication_factor"]) for row in rows],
    )


def describe(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The topic; optional with a flag that selects partitions.",
            autocompletion=complete.topics,
        ),
    ] = None,
    under_replicated: Annotated[
        bool,
        typer.Option("--under-replicated-partitions", help="Show only partitions with a replica that is not in sync."),
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option(
            "--under-min-isr-partitions",
            help="Show only partitions with too few in-sync replicas (min.insync.replicas) for writes with acks=all.",
        ),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Show only partitions without a leader.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show a topic's partitions, leaders, replicas, in-sync replicas, and the configuration keys that were set for it.

    \b
    Examples:
      headrace topics describe orders
      headrace topics describe orders -o json
      headrace topics describe --under-replicated-partitions
    """
    flags = {"under_replicated": under_replicated, "under_min_isr": under_min_isr, "unavailable": unavailable}
    asked = [flag for flag, given in flags.items() if given]
    if name is None and not asked:
        raise typer.BadParameter("pass a topic, or a flag that selects partitions of all topics", param_hint="NAME")
    with admin(bootstrap) as client:
        described = describe_partitions(client, None if name is None else [name])
    for each in described:
        each["partitions"] = [row for row in each["partitions"] if not asked or any(row[flag] for flag in asked)]
    if name is None:
        _show_troubled(described, output)
        return
    (topic,) = described
    if output is OutputFormat.JSON:
        print_json(topic)
        return
    config, partitions = topic["config"], topic["partitions"]
    settings = ", ".join(f"{key}={value}" for key, value in sorted(config.items())) or "nothing set"
    print(
        f"{name}  id {topic['topic_id']}  {counted(topic['partition_count'], 'partition')}  "
        f"min.insync.replicas {topic['min_insync_replicas']}  config: {settings}\n",
        flush=True,
    )
    _print_partitions(partitions, [])


def describe_partitions(client: Any, names: list[str] | None) -> list[dict[str, Any]]:
    """The documents of ``topics describe -o json`` (``names`` None: all topics)."""
    from headrace import ConfigResource, TopicPartition

    topics = client.describe_topics(names)
    resources = [ConfigResource("topic", topic.name) for topic in topics]
    configs = client.describe_configs(resources) if resources else {}
    short = [
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if len(each.isr) < len(each.replicas)
    ]
    moving = client.list_partition_reassignments(short) if short else {}
    found = []
    for topic, resource in zip(topics, resources, strict=True):
        entries = configs[resource]
        minimum = int(entries["min.insync.replicas"].value)
        rows = []
        for each in topic.partitions:
            move = moving.get(TopicPartition(topic.name, each.partition))
            # Replicas that a reassignment adds need not be in sync yet.
            added = set() if move is None else set(move.adding_replicas)
            former = [replica for replica in each.replicas if replica not in added]
            rows.append(
                {
                    "partition": each.partition,
                    "leader": each.leader,
                    "leader_epoch": each.leader_epoch,
                    "replicas": list(each.replicas),
                    "isr": list(each.isr),
                    "offline_replicas": list(each.offline_replicas),
                    "elr": list(each.elr),
                    "last_known_elr": list(each.last_known_elr),
                    "under_replicated": len(each.isr) < len(former),
                    "under_min_isr": len(each.isr) < min(minimum, len(each.replicas)),
                    "unavailable": each.leader < 0,
                }
            )
        found.append(
            {
                **_summary(topic),
                "partition_count": len(topic.partitions),
                "min_insync_replicas": minimum,
                "config": {entry.name: entry.value for entry in entries.values() if entry.source == "dynamic_topic"},
                "partitions": rows,
            }
        )
    return found


def _show_troubled(topics: list[dict[str, Any]], output: OutputFormat) -> None:
    rows = [{"topic": topic["name"], **row} for topic in topics for row in topic["partitions"]]
    if output is OutputFormat.JSON:
        print_json(rows)
    elif rows:
        _print_partitions(rows, ["topic"])
    else:
        print("no partition matches", flush=True)


def _print_partitions(rows: list[dict[str, Any]], first: list[str]) -> None:
    columns = [*first, "partition", "leader", "leader_epoch", "replicas", "isr", "offline_replicas"]
    columns += [each for each in ("elr", "last_known_elr") if any(row[each] for row in rows)]
    print_table(
        [*(column.upper().replace("_", " ") for column in columns), "STATE"],
        [[*(_cell(row[column]) for column in columns), _state(row)] for row in rows],
    )


def _state(row: dict[str, Any]) -> str:
    states = {"unavailable": "no leader", "under_min_isr": "under min isr", "under_replicated": "under replicated"}
    return ", ".join(words for flag, words in states.items() if row[flag]) or "ok"


def alter(
    name: _Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="The new number of partitions; it can only grow.")
    ] = None,
    config: _Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY", help="Reset this configuration key to its default; repeatable."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Add partitions to a topic, or change its configuration. Configuration keys that are not named keep their values.
    If the number of partitions is refused, the configuration stays unchanged.

    \b
    Examples:
      headrace topics alter orders -p 12
      headrace topics alter orders -c retention.ms=1h --delete-config segment.bytes
    """
    from headrace import ConfigResource

    changes: dict[str, str | None] = dict(key_values(config or (), "--config"))
    deleted = list(dict.fromkeys(delete_config or ()))
    changes |= dict.fromkeys(deleted)
    if partitions is None and not changes:
        raise typer.BadParameter("nothing to change: pass -p, -c or --delete-config")
    with admin(bootstrap) as client:
        if changes and partitions is not None:
            client.create_partitions({name: partitions}, validate_only=True)  # before the keys change, not after
        if changes:
            client.alter_configs({ConfigResource("topic", name): changes})
            tell_notes("topic", changes)
        if partitions is not None:
            try:
                client.create_partitions({name: partitions})
            except HeadraceError:
                if changes:
                    note(f"the configuration of {name} has changed; its partitions have not")
                raise
            note(
                f"note: new records of a key in {name} may go to another partition than its old ones: consumers may "
                "read them before older records of the same key"
            )
        row = _summary(client.describe_topics([name])[0])
        held = what_holds(client, ConfigResource("topic", name), deleted) if deleted else {}
    if output is OutputFormat.JSON:
        now = {key: [each._asdict() for each in values] for key, values in held.items()}
        print_json({**row, "changed": changes, "now": now})
    else:
        keys = f", {counted(len(changes), 'key')} changed" if changes else ""
        print(f"altered topic {name} ({counted(row['partitions'], 'partition')}{keys})")
        for key in deleted:
            print(value_after_reset(key, held[key]))


def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The topics.", autocompletion=complete.topics)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete topics and all their records. If some topics cannot be deleted, the others are, and the exit code is 1.

    \b
    Examples:
      headrace topics delete orders
      headrace topics delete orders clicks -o json      {"deleted": [NAME], "failed": [{"topic", "error"}]}
    """
    from .each import change_each, end_with_failures, error_document

    with admin(bootstrap) as client:
        deleted, failed = change_each(names, lambda name: client.delete_topics([name]))
    document: dict[str, Any] = {"deleted": list(deleted)}
    if failed:
        document["failed"] = [{"topic": name, "error": error_document(error)} for name, error in failed.items()]
    show(output, document, f"deleted {', '.join(deleted)}")
    end_with_failures(failed)


def offsets(
    name: _Name,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Show only this partition; repeatable. Default: all.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the start and end offset of each partition, and how many offsets are between them (compacted logs have
    gaps).

    \b
    Examples:
      headrace topics offsets orders
      headrace topics offsets orders -p 0 -o json     {"topic", "partitions": [{"partition", "start", "end", "count"}]}
    """
    from headrace import TopicPartition
    from headrace.errors import UnknownTopicOrPartitionError

    with admin(bootstrap) as client:
        there = [each.partition for each in client.describe_topics([name])[0].partitions]
        missing = sorted(set(partition or ()) - set(there))
        if missing:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} has no partition {', '.join(map(str, missing))}; its partitions are 0 to {there[-1]}"
            )
        wanted = [TopicPartition(name, number) for number in sorted(set(partition or there))]
        starts = client.list_offsets(dict.fromkeys(wanted, "earliest"))
        ends = client.list_offsets(dict.fromkeys(wanted, "latest"))
    rows = [
        {
            "partition": each.partition,
            "start": starts[each].offset,
            "end": ends[each].offset,
            "count": ends[each].offset - starts[each].offset,
        }
        for each in wanted
    ]
    if output is OutputFormat.JSON:
        print_json({"topic": name, "partitions": rows})
    else:
        print_table(("PARTITION", "START", "END", "COUNT"), [tuple(row.values()) for row in rows])


def _summary(topic: Any) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": _id(topic.topic_id),
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication_factor": max((len(each.replicas) for each in topic.partitions), default=0),
    }


def _id(raw: bytes) -> str:
    from headrace_core.node.ids import id_to_text

    return id_to_text(raw)


def _cell(value: Any) -> Any:
    return (",".join(map(str, value)) or "-") if isinstance(value, list) else value
