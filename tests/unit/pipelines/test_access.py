"""The flags with which ``headrace-pipelines sql`` reaches a secured cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headrace.settings import ADMIN, BOOTSTRAP_VARIABLE, CONSUMER, PRODUCER, resolve
from headrace_core.errors import InvalidConfigError
from headrace_pipelines.access import CONFIG_VARIABLE, Access, access_of, add_arguments
from headrace_pipelines.sites import Site
from headrace_spark.options import parse_options
from headrace_spark.sink_options import parse_sink_options

SECRET = "pl4nted-secret"
LOGIN = f"""security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="{SECRET}";
ssl.truststore.location=/ca.pem
ssl.truststore.type=PEM
"""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)


def access(*words: str) -> Access:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return access_of(parser.parse_args(words))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(LOGIN + "bootstrap.servers=file:1\nacks=all\nfetch.min.bytes=2\ngroup.id=mine\n")
    return path


def test_each_client_gets_the_keys_that_it_has(file: Path) -> None:
    found = access("--command-config", str(file), "-X", "linger.ms=1s", "-X", "fetch.min.bytes=3")
    for kind, keys in ((ADMIN, found.admin()), (PRODUCER, found.producer()), (CONSUMER, found.consumer())):
        assert SECRET in keys["sasl.jaas.config"]
        assert keys["ssl.truststore.location"] == "/ca.pem"
        assert "group.id" not in keys
        assert resolve(kind, keys, {})["bootstrap.servers"] == ["file:1"], "the client takes all of its keys"
    assert (found.producer()["linger.ms"], found.producer()["acks"]) == ("1000", "all")
    assert found.consumer()["fetch.min.bytes"] == "3", "-X is before the file"
    assert "acks" not in found.consumer()


def test_several_clients_share_the_keys_that_each_of_them_has(file: Path) -> None:
    found = access("--command-config", str(file), "-X", "retries=7")
    shared = found.shared()
    assert {"bootstrap.servers", "sasl.jaas.config", "ssl.truststore.location"} <= shared.keys()
    assert "retries" in found.admin()
    for kind in (ADMIN, PRODUCER, CONSUMER):
        resolve(kind, shared, {})


def test_the_address_is_of_the_flag_then_of_x_the_environment_and_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert access().servers == "127.0.0.1:9095"
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    assert access().servers == "file:1"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "environment:1")
    assert access().servers == "environment:1"
    assert access("-X", "bootstrap.servers=x:1").servers == "x:1"
    assert access("-X", "bootstrap.servers=x:1", "-b", "flag:1").servers == "flag:1"


def test_source_and_sink_take_the_options_also_with_delegation_tokens(file: Path) -> None:
    found = access("--command-config", str(file), "-X", "delegation.token.enabled=true")
    source = parse_options(found.source() | {"subscribe": "t"}, streaming=True)
    assert SECRET in source.client["sasl.jaas.config"]
    assert source.token_mechanism == "SCRAM-SHA-512"
    assert source.notes == ()
    sink = parse_sink_options(found.sink() | {"topic": "t"})
    assert SECRET in sink.client["sasl.jaas.config"]
    assert sink.token_mechanism == "SCRAM-SHA-512"
    site = Site("p", found.servers, Path("/d"), keys=found.keys)
    assert parse_options(site.read("t", query="q"), streaming=True).group_id == "p.q"
    assert SECRET in parse_sink_options(site.write("t", query="q")).client["sasl.jaas.config"]
    assert "headrace.delegation.token.enabled" not in access("--command-config", str(file)).source()


def test_the_registry_has_keys_of_its_own() -> None:
    assert access().registry(None) is None
    assert access().registry("http://r:1") == "http://r:1"
    found = access("-X", f"schema.registry.basic.auth.user.info=u:{SECRET}").registry("http://r:1")
    assert found == {"schema.registry.url": "http://r:1", "schema.registry.basic.auth.user.info": f"u:{SECRET}"}


def test_secrets_are_hidden(file: Path) -> None:
    found = access("--command-config", str(file), "-X", "sasl.password=other", "-X", "acks=all")
    assert SECRET not in repr(found)
    assert SECRET not in repr(Site("p", found.servers, Path("/d"), keys=found.keys))
    plan = f"Scan [{found.keys['sasl.jaas.config']}] other all"
    assert found.hidden(plan) == "Scan [[hidden]] [hidden] all"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("sasl.passwort=x", "unknown consumer configuration key 'sasl.passwort'"),
        ("acks=many", "acks='many'"),
        ("group.id=mine", "-X group.id: this command sets group.id itself; leave this -X out"),
    ],
)
def test_a_wrong_key_is_named(pair: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as error:
        access("-X", pair)
    assert message in error.value.message


def test_a_pair_without_a_value_shows_no_secret(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for pair in (f"={SECRET}", f"sasl.password:{SECRET}"):
        with pytest.raises(SystemExit):
            access("-X", pair)
        assert SECRET not in capsys.readouterr().err
    path = tmp_path / "wrong.properties"
    path.write_text("sasl.mechanism=SCRAM-SHA-512\nsasl.passwrd=x\n")
    with pytest.raises(InvalidConfigError, match=r"wrong\.properties"):
        access("--command-config", str(path))
