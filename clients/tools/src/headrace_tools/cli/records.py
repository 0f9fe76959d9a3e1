"""The command ``records delete``: delete records from the start of a partition's log."""

from __future__ import annotations

from typing import Annotated

import typer

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, admin
from .each import change_each, end_with_failures, error_document
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

    If a partition refuses the offset, the records of the other partitions are deleted, and the exit code is 1.

    \b
    Examples:
      headrace records delete -t orders -p 0 --before 1000
      headrace records delete -t orders --before end
      headrace records delete -t orders --before end -o json
          [{"topic", "partition", "low_watermark"}], and "error" after a failure
    """
    from headrace import TopicPartition

    if before != "end" and not (before.isascii() and before.isdigit()):
        raise typer.BadParameter(f"{before!r}: must be an offset or `end`", param_hint="--before")
    offset = -1 if before == "end" else int(before)
    with admin(bootstrap) as client:
        if partition is None:
            (description,) = client.describe_topics([topic])
            partitions = [each.partition for each in description.partitions]
        else:
            partitions = [partition]
        starts, failed = change_each(
            (TopicPartition(topic, number) for number in partitions),
            lambda part: client.delete_records({part: offset})[part],
        )
    rows = [{"topic": tp.topic, "partition": tp.partition, "low_watermark": low} for tp, low in sorted(starts.items())]
    if output is OutputFormat.JSON:
        rows += [
            {"topic": tp.topic, "partition": tp.partition, "low_watermark": None, "error": error_document(error)}
            for tp, error in sorted(failed.items())
        ]
    show_rows(output, ("TOPIC", "PARTITION", "STARTS AT"), rows)
    end_with_failures(failed)
