"""The command ``records delete``: delete records from the start of a partition's log."""

from __future__ import annotations

from typing import Annotated

import typer

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, show_rows


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Delete records from the start of a partition.", no_args_is_help=True)
    group.callback()(_group)
    group.command("delete")(delete)
    app.add_typer(group, name="records")


def _group() -> None:
    """Delete records from the start of a partition."""


def delete(
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.", autocompletion=complete.topics)],
    before: Annotated[str, typer.Option("--before", help="The first offset to keep, or `end` to delete all records.")],
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Default: every partition.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete the records below an offset from one partition, or without -p from every partition of the topic. When the
    command has returned, no consumer can read the deleted records; their disk space is freed soon after.

    \b
    Examples:
      headrace records delete -t orders -p 0 --before 1000
      headrace records delete -t orders --before end
    """
    from headrace import TopicPartition

    if before != "end" and not before.isdigit():
        raise typer.BadParameter(f"{before!r}: must be an offset or `end`", param_hint="--before")
    offset = -1 if before == "end" else int(before)
    with admin(bootstrap) as client:
        if partition is None:
            (description,) = client.describe_topics([topic])
            partitions = [each.partition for each in description.partitions]
        else:
            partitions = [partition]
        starts = client.delete_records({TopicPartition(topic, number): offset for number in partitions})
    rows = [{"topic": tp.topic, "partition": tp.partition, "low_watermark": low} for tp, low in sorted(starts.items())]
    show_rows(output, ("TOPIC", "PARTITION", "STARTS AT"), rows)
