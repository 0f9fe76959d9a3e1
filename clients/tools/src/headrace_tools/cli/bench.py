"""``bench produce|consume|latency``: the command line of ``headrace_tools.bench``."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from headrace_core.plurals import counted

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, Properties, client_config
from .output import Output, OutputFormat, note, print_json


class _Api(enum.StrEnum):
    OBJECT = "object"
    MANY = "many"
    ARROW = "arrow"
    ASYNC = "async"


_Topic = Annotated[
    str, typer.Option("--topic", "-t", help="The topic; created if it does not exist.", autocompletion=complete.topics)
]
_ApiOption = Annotated[
    _Api, typer.Option("--api", help="The client API to measure; object handles one record at a time.")
]
_Bytes = Annotated[
    int, typer.Option("--record-bytes", help="Size of each record's value in bytes; the values are random.")
]
_Rate = Annotated[float | None, typer.Option("--rate", help="Records per second.")]
_Acks = Annotated[str, typer.Option("--acks", help="The producer's acks: all, 1 or 0.")]
_Compression = Annotated[
    str, typer.Option("--compression", "-z", help="The compression type: none, gzip, snappy, lz4 or zstd.")
]
_Partitions = Annotated[
    int, typer.Option("--partitions", "-p", help="Number of partitions, if the topic does not exist yet.")
]
_Warm = Annotated[bool, typer.Option("--warm/--no-warm", help="Allocate the client's memory before the measurement.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Measure the throughput of producing and consuming, and the time from a record's send to its receipt.",
        no_args_is_help=True,
    )
    group.command("produce")(produce)
    group.command("consume")(consume)
    group.command("latency")(latency)
    app.add_typer(group, name="bench")


def produce(
    topic: _Topic,
    api: _ApiOption = _Api.OBJECT,
    records: Annotated[int, typer.Option("--records", help="Number of records.")] = 1_000_000,
    record_bytes: _Bytes = 100,
    rate: _Rate = None,
    acks: _Acks = "all",
    compression: _Compression = "none",
    partitions: _Partitions = 6,
    warm: _Warm = True,
    properties: Properties = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Produce random values; the clock stops when the last record is acknowledged.

    \b
    Examples:
      headrace bench produce --topic perf --api arrow --records 5000000 -o json
      headrace bench produce --topic perf --rate 10000 --acks 1 -X linger.ms=10
    """
    config = client_config(
        bootstrap, properties, kind="producer", flags={"acks": acks, "compression.type": compression}
    )
    _run("produce", config, output, topic, api, records, record_bytes, rate, partitions, warm)


def consume(
    topic: _Topic,
    api: _ApiOption = _Api.OBJECT,
    records: Annotated[
        int | None, typer.Option("--records", help="Number of records to read; default: all records of the topic.")
    ] = None,
    warm: _Warm = True,
    properties: Properties = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
    record_bytes: Annotated[int, typer.Option("--record-bytes", hidden=True)] = 100,
    rate: Annotated[float | None, typer.Option("--rate", hidden=True)] = None,
    acks: Annotated[str, typer.Option("--acks", hidden=True)] = "all",
    compression: Annotated[str, typer.Option("--compression", hidden=True)] = "none",
) -> None:
    """Read a topic from its earliest offset; check the CRCs, and that no offset is missing.

    \b
    Examples:
      headrace bench consume --topic perf --api arrow -o json
    """
    if rate is not None:
        note("headrace: ignored --rate: consume has no rate")
    _run(
        "consume",
        client_config(bootstrap, properties, kind="consumer"),
        output,
        topic,
        api,
        records,
        record_bytes,
        None,
        6,
        warm,
    )


def latency(
    topic: _Topic,
    api: Annotated[_Api, typer.Option("--api", help="object or async.")] = _Api.OBJECT,
    records: Annotated[int, typer.Option("--records", help="Number of records.")] = 10_000,
    record_bytes: _Bytes = 100,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Records to send per second; default: each record waits for the one before it."),
    ] = None,
    acks: _Acks = "all",
    compression: _Compression = "none",
    partitions: _Partitions = 6,
    warm: _Warm = True,
    properties: Properties = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Measure the time from send to receipt, with one record in flight or at a --rate.

    \b
    Examples:
      headrace bench latency --topic ping --rate 1000 --records 30000 -o json
    """
    config = client_config(
        bootstrap, properties, kind="producer", flags={"acks": acks, "compression.type": compression}
    )
    _run("latency", config, output, topic, api, records, record_bytes, rate, partitions, warm)


def _run(
    workload: str,
    config: dict[str, Any],
    output: OutputFormat,
    topic: str,
    api: _Api,
    records: int | None,
    record_bytes: int,
    rate: float | None,
    partitions: int,
    warm: bool,
) -> None:
    from .. import bench

    options = bench.BenchOptions(
        topic=topic,
        config=config,
        api=api.value,
        records=records,
        record_bytes=record_bytes,
        rate=rate,
        partitions=partitions,
        warm=warm,
        say=note,
    )
    result = {"produce": bench.produce, "consume": bench.consume, "latency": bench.latency}[workload](options)
    found = result.document()
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        times = ", ".join(f"{name} {value:g}" for name, value in found["latency_ms"].items())
        print(
            f"{workload} ({api.value}): {counted(found['records'], 'record')} in {found['seconds']:.3f} s, "
            f"{found['records_per_s']:,.0f} records/s, {found['mib_per_s']:,.1f} MiB/s; latency (ms): {times}; "
            f"{'verified' if found['verified'] else 'NOT VERIFIED'}"
        )
    if not found["verified"]:
        note(f"headrace: {workload}: records are missing, doubled or damaged; ignore the figures")
        raise typer.Exit(1)
