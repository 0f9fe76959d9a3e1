"""Pickled readers in workers, the error when the package is missing, the worker's Java, and the columns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

import headrace_spark
from headrace_core.errors import InvalidConfigError
from headrace_spark.errors import JavaNotFoundError
from headrace_spark.java import find_java, java_version
from headrace_spark.planning import OffsetRange
from headrace_spark.schema import RECORD, RECORD_WITH_HEADERS, arrow_schema, check_schema
from headrace_spark.session import LOCAL_DEFAULTS, defaults
from headrace_spark.source import HeadraceBatchReader, HeadraceDataSource
from headrace_spark.stream import HeadraceStreamReader
from headrace_spark.tasks import RangePartition
from tests.unit.spark.spark_fakes import options


def test_columns_are_the_kafka_sources() -> None:
    assert RECORD.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert RECORD_WITH_HEADERS["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert all(field.nullable for field in RECORD_WITH_HEADERS.fields)


@pytest.mark.parametrize("schema", [RECORD, RECORD_WITH_HEADERS])
def test_arrow_types_are_those_that_spark_expects(schema: StructType) -> None:
    assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_query_may_name_fewer_columns_but_no_others() -> None:
    two = StructType([RECORD["partition"], RECORD["value"]])
    assert check_schema(two, False).fieldNames() == ["partition", "value"]
    with pytest.raises(InvalidConfigError, match="no column 'colour'"):
        check_schema(StructType([StructField("colour", IntegerType())]), False)
    with pytest.raises(InvalidConfigError, match="includeHeaders=true"):
        check_schema(StructType([RECORD_WITH_HEADERS["headers"]]), False)
    with pytest.raises(InvalidConfigError, match="'offset' is bigint, not int"):
        check_schema(StructType([StructField("offset", IntegerType())]), False)


def test_readers_travel_with_their_options_and_without_connections() -> None:
    for reader in (HeadraceBatchReader(options(), RECORD), HeadraceStreamReader(options(), RECORD)):
        arrived = cloudpickle.loads(cloudpickle.dumps(reader))
        assert type(arrived) is type(reader)
        assert (arrived.options, arrived.columns) == (reader.options, reader.columns)
        assert "_offsets" not in arrived.__dict__
    source = cloudpickle.loads(cloudpickle.dumps(HeadraceDataSource(options())))
    assert source.options == options()
    part = cloudpickle.loads(cloudpickle.dumps(RangePartition(OffsetRange("t", 0, 1, 2), "an id")))
    assert part.value == ("t", 0, 1, 2, "an id")


@pytest.mark.parametrize("kind", [HeadraceBatchReader, HeadraceStreamReader])
def test_a_worker_without_the_package_says_so(kind: type, tmp_path: Path) -> None:
    shipped = tmp_path / "reader.pickle"
    shipped.write_bytes(cloudpickle.dumps((kind(options(), RECORD), RangePartition(OffsetRange("t", 0, 1, 2)))))
    script = (
        "import pickle, sys; sys.modules['headrace_spark'] = None\n"
        "from pyspark import cloudpickle\n"
        f"cloudpickle.loads(open({str(shipped)!r}, 'rb').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "headrace_spark cannot be imported in a Spark worker" in done.stderr
    assert f"This Spark worker runs {sys.executable}" in done.stderr
    assert "PYSPARK_PYTHON" in done.stderr


def test_a_worker_with_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = cloudpickle.dumps(HeadraceBatchReader(options(), RECORD))
    monkeypatch.setattr(headrace_spark, "__version__", "0.0.1")
    with pytest.raises(ImportError, match=r"has headrace_spark 0\.0\.1, the driver has"):
        cloudpickle.loads(shipped)


def test_importing_the_source_opens_nothing_that_a_fork_would_break() -> None:
    script = "import sys, headrace_spark, headrace_spark.stream; assert 'grpc' not in sys.modules, 'grpc is imported'"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_local_cluster_is_no_local_master() -> None:
    assert all(defaults(master) == LOCAL_DEFAULTS for master in ("local", "local[*]", "local[2, 4]"))
    assert [defaults(master) for master in (None, "local-cluster[2,1,1024]", "spark://h:7077")] == [{}] * 3


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_java_home_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "mine", "21.0.2")
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}, []) == home
    assert java_version(home) == 21


def test_an_old_java_is_passed_over_for_one_that_runs_spark(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    fake_java(tmp_path / "jvm" / "jdk-25", "25.0.1")
    tested = fake_java(tmp_path / "jvm" / "jdk-17", "17.0.9")
    path = os.pathsep.join([str(old / "bin"), os.environ["PATH"].split(os.pathsep)[-1]])
    assert find_java({"JAVA_HOME": str(old), "PATH": path}, [str(tmp_path / "jvm")]) == tested


def test_without_java_the_error_says_what_was_seen_and_how_to_get_one(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME .*old: Java 11.*openjdk-17-jre-headless") as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, [str(tmp_path / "nowhere")])
    assert caught.value.code == "JAVA_NOT_FOUND"


def test_the_arrow_batch_of_the_codec_is_what_spark_expects() -> None:
    from headrace_core.records import encode_batch
    from headrace_core.records.arrow import decode_arrow

    data = encode_batch([(1_500, None, b"v", []), (1_501, b"k", None, [("h", b"1"), ("n", None)])])
    for schema, headers in ((RECORD, False), (RECORD_WITH_HEADERS, True)):
        batch = decode_arrow([data], topic="t", partition=3, include_headers=headers)
        assert arrow_schema(schema).equals(batch.schema)
    assert batch.to_pylist()[1]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert batch.to_pylist()[0]["headers"] is None
    assert isinstance(batch, pa.RecordBatch)
