"""``records delete``: moves the start of a log forward."""

from __future__ import annotations

from typing import Annotated

import typer

from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .output import Output, OutputFormat, print_json, print_table


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Delete records from the start of a partition.", no_args_is_help=True)
    group.callback()(_group)
    group.command("delete")(delete)
    app.add_typer(group, name="records")


def _group() -> None:
    """Delete records from the start of a partition."""


def delete(
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.")],
    before: Annotated[str, typer.Option("--before", help="Delete what is below this offset; `end`: everything.")],
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Default: every partition.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete the records below an offset, at once for readers and soon from the disk.

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
    if output is OutputFormat.JSON:
        print_json(rows)
    else:
        print_table(("TOPIC", "PARTITION", "STARTS AT"), [tuple(row.values()) for row in rows])
