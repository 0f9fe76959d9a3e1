"""The programs that the run of cdc needs: what is missing, and how to install it."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import pytest

from headrace_core.errors import InvalidArgumentError, InvalidConfigError
from headrace_pipelines.cdc import postgres
from headrace_pipelines.cdc.connect import (
    SOURCES,
    Worker,
    avro_converters,
    debezium,
    fetch_jars,
    java_keys,
    project,
    properties,
)
from headrace_pipelines.cdc.postgres import programs
from headrace_pipelines.show import Show
from headrace_pipelines.stopping import Stop
from tests.worlds.waiting import until


def test_the_newest_postgresql_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_PROGRAMS", tmp_path)
    with pytest.raises(InvalidArgumentError, match="apt-get install postgresql"):
        programs()
    for version in ("9.6", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "postgres").touch()
    assert programs() == tmp_path / "17" / "bin"


def test_missing_maven_is_an_error_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="apt-get install maven"):
        fetch_jars(tmp_path / "jars")
    assert not (tmp_path / "jars").exists()


def test_jars_that_are_there_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "pom.xml").write_text(project())
    assert fetch_jars(tmp_path) == tmp_path
    (tmp_path / "pom.xml").write_text("another version")
    with pytest.raises(InvalidArgumentError, match="Maven"):
        fetch_jars(tmp_path)


def test_a_missing_compiler_or_a_changed_source_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("mvn", "java"):
        (tmp_path / "bin" / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    jars = tmp_path / "jars"
    with pytest.raises(InvalidArgumentError, match="install a JDK 17"):
        fetch_jars(jars, with_avro=True)
    jars.mkdir()
    (jars / "pom.xml").write_text(project(with_avro=True))
    for source in SOURCES:
        shutil.copy(source, jars)
    assert fetch_jars(jars, with_avro=True) == jars
    (jars / SOURCES[0].name).write_text("an older source")
    with pytest.raises(InvalidArgumentError, match="install a JDK 17"):
        fetch_jars(jars, with_avro=True)


def test_keys_and_values_in_avro_have_valid_names() -> None:
    config = avro_converters("http://a:1,http://b:2")
    assert config["key.converter"] == config["value.converter"] == "headrace.connect.AvroConverter"
    assert config["value.converter.apicurio.registry.url"] == "http://a:1,http://b:2"
    assert config["field.name.adjustment.mode"] == config["schema.name.adjustment.mode"] == "avro"


def test_debezium_writes_exactly_once_and_reads_only_the_tables() -> None:
    config = debezium(5432, "shop", ["public.a", "public.b"])
    assert config["exactly.once.support"] == "required"
    assert (config["table.include.list"], config["topic.prefix"]) == ("public.a,public.b", "shop")


def test_keys_of_clients_become_those_of_java() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'o"reilly',
        "sasl.password": 'back\\slash "quoted"',
        "ssl.ca.location": "/ca.pem",
        "linger.ms": "5",
    }
    assert java_keys(given) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="o\\"reilly" password="back\\\\slash \\"quoted\\"";',
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "PEM",
    }
    plain = java_keys({"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"})
    assert "plain.PlainLoginModule" in plain["sasl.jaas.config"]
    as_given = {"sasl.jaas.config": "x", "ssl.keystore.location": "k", "ssl.keystore.type": "PKCS12"}
    assert java_keys(as_given) == as_given
    with pytest.raises(InvalidConfigError, match=r"ssl\.key\.location: Kafka Connect does not have this key; put"):
        java_keys({"ssl.key.location": "k"})


def test_properties_are_readable_for_java() -> None:
    assert properties({"a": 'x\\y"ü\n', "b": " z"}) == 'a=x\\\\y"\\u00fc\\n\nb=\\ z\n'


GIVEN = ["-b", "b:1", "--kafka-bootstrap-servers", "g:1"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--kafka-bootstrap-servers", "g:9092"], "add --bootstrap-servers"),
        (["-b", "b:1"], "add --kafka-bootstrap-servers"),
        (["-X", "security.protocol=SSL"], "so name its cluster"),
        ([*GIVEN, "-X", "ssl.key.location=k"], "Kafka Connect does not have"),
        ([*GIVEN, "--format", "avro"], "needs a schema registry"),
        (
            [*GIVEN, "--format", "avro", "-X", "schema.registry.url=https://r:1"],
            "supports neither https nor a login",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(
    flags: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_COMMAND_CONFIG", raising=False)
    job = pytest.importorskip("headrace_pipelines.cdc.job")
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    with pytest.raises(InvalidConfigError, match=reason):
        job.run(parser.parse_args(flags), tmp_path, Show(), Stop())
    assert not list(tmp_path.iterdir())


def test_a_worker_that_ends_at_once_has_its_reason_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\nexec <&-\necho no memory >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    large = {"ssl.truststore.certificates": "x" * 100_000}  # more than a pipe holds
    with Worker(tmp_path / "jars", tmp_path, "broker:9092", large) as worker:
        until(lambda: not worker.is_running(), "the program ends")
    assert "no memory" in (tmp_path / "connect.log").read_text()


def test_the_worker_gets_its_keys_on_standard_input_and_no_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(
        '#!/bin/sh\nfor each; do file=$each; done\ngrep -v "^#" "$file" | tr "=" ":" | sed "s/secret/found/"\n'
    )
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for _ in range(2):  # the log has the output of both starts
        with Worker(tmp_path / "jars", tmp_path, "broker:9092", {"sasl.jaas.config": "secret"}) as worker:
            until(lambda worker=worker: not worker.is_running(), "the program ends")  # type: ignore[misc]
    lines = (tmp_path / "connect.log").read_text().splitlines()
    assert lines.count("bootstrap.servers:broker:9092") == 2
    for name in ("", "producer.", "consumer.", "admin."):
        assert lines.count(f"{name}sasl.jaas.config:found") == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"=secret" in path.read_bytes()]
