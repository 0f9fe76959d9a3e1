"""Commands that print exit with 141 (128 + SIGPIPE) when the reader of their output has ended: `headrace ... | head`.

The commands are taken from the command tree, so a new command fails the test until it is listed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.main import get_command

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer
from headrace_tools.cli.app import run
from headrace_tools.cli.root import build
from tests.worlds.security import TestAuthority

TOPIC, GROUP, TRANSACTIONAL_ID = "readers-gone", "readers-gone-group", "readers-gone-id"

#: The arguments of each command that prints a list. The test fills in ``{...}``.
_PRINTS = {
    "ps": "--data {data}",
    "consume": "-t {topic} -e",
    "doctor": "--data {data}",
    "top": "--once -i 0.2",
    "topics list": "",
    "topics describe": "{topic}",
    "topics offsets": "{topic}",
    "configs describe": "--topic {topic} --all",
    "groups list": "",
    "groups describe": "{group}",
    "groups members": "{group}",
    "groups explain": "{group}",
    "groups reset-offsets": "{group} --topic {topic} --to-earliest",
    "transactions list": "",
    "transactions describe": "{transactional_id}",
    "transactions describe-producers": "-t {topic} -p 0",
    "transactions find-hanging": "",
    "partitions list-reassignments": "",
    "brokers list": "",
    "cluster describe": "",
    "log dump": "{log}",
    "log verify": "{log}",
    "log-dirs describe": "",
    "quorum status": "",
    "features describe": "",
    "quotas list": "",
    "lag": "",
    "users list": "",
    "certs show": "{certificate}",
    "metadata dump": "{metadata}",
    "metadata ls": "{metadata}",
    "metadata cat": "{metadata} /local/quorum",
    "profile list": "",
    "schemas list": "-r {http}",
    "schemas show": "orders-value -r {http}",
    "schemas diff": "orders-value 1 2 -r {http}",
    "connectors list": "--connect-url {http}",
    "connectors status": "orders --connect-url {http}",
    "random-uuid": "",
    "version": "",
}  # fmt: skip
#: Commands that change or measure something. A command that changes or measures something prints a line or two at the
#: end, after its work is done.
_CHANGES = {
    "up", "down", "restart", "format", "produce", "topics create", "topics alter", "topics delete", "configs alter",
    "records delete", "groups delete", "groups delete-offsets", "groups remove-members",
    "transactions complete", "transactions abort", "partitions reassign",
    "partitions elect", "brokers drain", "brokers unregister", "cluster drain", "cluster roll", "log-dirs move",
    "quorum add", "quorum remove", "quorum transfer", "features upgrade", "features downgrade",
    "quotas set", "quotas delete", "profile set",
    "profile use", "profile show", "profile delete", "bench produce", "bench consume", "bench latency",
    "schemas register", "schemas check", "schemas delete", "schemas level",
    "connectors create", "connectors restart", "connectors delete",
    "ship", "console", "certs init", "certs issue", "certs renew",
    "users create", "users alter", "users delete", "acls create", "acls delete",
    "acls list",  # an error without an authorizer, as in Kafka
    "tokens create", "tokens list", "tokens renew", "tokens expire",  # errors without a secret
}  # fmt: skip


_SCHEMA = {"subject": "orders-value", "id": 1, "schemaType": "AVRO"}
_STATUS = {
    "name": "orders", "type": "source", "connector": {"state": "RUNNING", "worker_id": "127.0.0.1:8083"},
    "tasks": [{"id": 0, "state": "RUNNING", "worker_id": "127.0.0.1:8083"}],
}  # fmt: skip
#: What a registry and a Connect worker answer; a path that ends with a number is a version.
_ANSWERS: dict[str, object] = {
    "/schemas": [{**_SCHEMA, "version": 2, "schema": '"long"'}],
    "/subjects/orders-value/versions/latest": {**_SCHEMA, "version": 2, "schema": '"long"'},
    "/subjects/orders-value/versions/1": {**_SCHEMA, "version": 1, "schema": '"int"'},
    "/subjects/orders-value/versions/2": {**_SCHEMA, "version": 2, "schema": '"long"'},
    "/connectors": {
        "orders": {"status": _STATUS, "info": {"name": "orders", "config": {}, "tasks": [], "type": "source"}}
    },
    "/connectors/orders": {"name": "orders", "config": {}, "tasks": [], "type": "source"},
    "/connectors/orders/status": _STATUS,
}


class _Answers(BaseHTTPRequestHandler):
    """Serves ``_ANSWERS``."""

    def do_GET(self) -> None:
        body = json.dumps(_ANSWERS[self.path.partition("?")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    """The address of a registry, and of a Connect worker."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _commands() -> Iterator[str]:
    """Every command of the tree except aliases, with groups before their subcommands."""
    root = get_command(build(()))
    for name, each in root.commands.items():
        verbs = getattr(each, "commands", None)
        yield from (name,) if verbs is None else (f"{name} {verb}" for verb, it in verbs.items() if not it.hidden)


def test_every_command_is_listed_here() -> None:
    assert {*_PRINTS, *_CHANGES} == set(_commands())


@contextlib.contextmanager
def _nobody_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """stdout is a pipe without a reader, buffered as Python buffers a pipe."""
    theirs, ours = os.pipe()
    os.close(theirs)
    with contextlib.suppress(BrokenPipeError), os.fdopen(ours, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        try:
            yield
        finally:
            monkeypatch.undo()


@pytest.fixture(scope="module")
def address_options(
    headrace: LocalCluster, http: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[str]]:
    """Fill in the arguments: a topic with records, and a group that has read this topic."""
    authority = TestAuthority(tmp_path_factory.mktemp("authority"))
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(TOPIC, partitions=1)])
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        producer.send_many(TOPIC, [b"x" * 100] * 500).result(timeout=60)
    ids = {"bootstrap.servers": headrace.bootstrap_servers, "transactional.id": TRANSACTIONAL_ID}
    with Producer(ids) as producer, producer.transaction():
        producer.send(TOPIC, b"x")
    settings = {"bootstrap.servers": headrace.bootstrap_servers, "group.id": GROUP, "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe([TOPIC])
        while not consumer.poll(timeout=60):
            pass
        consumer.commit()
    data = headrace.directory
    log = next(path for path in sorted(data.glob(f"broker-*/{TOPIC}-0")))
    metadata = next(path for path in sorted(Path(data).glob("controller-1")))
    words = {
        "topic": TOPIC, "group": GROUP, "transactional_id": TRANSACTIONAL_ID,
        "certificate": str(authority.ca), "data": str(data), "log": str(log), "metadata": str(metadata), "http": http,
    }  # fmt: skip
    return lambda arguments: [each.format(**words) for each in arguments.split()]


@pytest.mark.parametrize("command", _PRINTS)
def test_it_ends_with_141(
    command: str,
    address_options: Callable[[str], list[str]],
    headrace: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", headrace.bootstrap_servers)
    monkeypatch.setenv("HEADRACE_CONFIG_DIR", str(tmp_path))
    arguments = [*command.split(), *address_options(_PRINTS[command])]
    with _nobody_reads(monkeypatch):
        code = run(arguments)
    err = capfd.readouterr().err
    assert code == 141, err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--help"], ["topics", "--help"], ["topics", "list", "--help"], ["--version"]])
def test_help_does_too(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with _nobody_reads(monkeypatch):
        assert run(arguments) == 141
