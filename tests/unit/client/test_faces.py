"""The clients' public behaviour: reprs, copies, typed keywords, builtin base classes of the errors."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import headrace
from headrace import AdminSettings, ConsumerSettings, ProducerSettings, TopicPartition
from headrace_core.config import ConfigDef, Kind
from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.errors import InvalidArgumentError

ROOT = Path(__file__).parents[3]
CLIENTS = ["Producer", "AsyncProducer", "Consumer", "AsyncConsumer", "Admin", "AsyncAdmin", "LocalCluster"]


def made(name: str, **settings: Any) -> Any:
    if name == "LocalCluster":
        return headrace.LocalCluster(mode="inprocess")
    return getattr(headrace, name)(bootstrap_servers="127.0.0.1:1", **settings)


@pytest.mark.parametrize("name", CLIENTS)
def test_client_is_neither_pickled_nor_copied(name: str) -> None:
    client = made(name)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=f"a {name} cannot be pickled or copied: .* create a new one"):
            copied(client)


@pytest.mark.parametrize("name", CLIENTS[:6])
def test_repr_names_cluster_and_state(name: str) -> None:
    client = made(name)
    assert repr(client) == f"<{name} bootstrap.servers=127.0.0.1:1, open>"
    if not name.startswith("Async"):
        client.close()
        assert repr(client) == f"<{name} bootstrap.servers=127.0.0.1:1, closed>"


def test_repr_names_group_topics_and_partitions() -> None:
    with made("Consumer", group_id="g") as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(5)])
        assert "group 'g', assigned t-0, t-1, t-2 and 2 more, open" in repr(consumer)
        consumer.unsubscribe()
        consumer.subscribe(["b", "a"])
        assert "group 'g', subscribed to topics a, b, open" in repr(consumer)
        consumer.subscribe(pattern="x.*")
        assert "subscribed to pattern 'x.*'" in repr(consumer)
    assert repr(made("LocalCluster")) == "<LocalCluster inprocess, stopped>"


def test_errors_and_serializers_need_no_import_of_their_own() -> None:
    code = "import headrace; print(headrace.errors.SerializationError.code, headrace.serializers.from_json.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["SERIALIZATION_FAILED", "from_json"]
    assert {"errors", "serializers"} <= set(dir(headrace))


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("RequestTimedOutError", TimeoutError),
        ("DeliveryTimeoutError", TimeoutError),
        ("UnknownOutcomeError", TimeoutError),
        ("BufferTimeoutError", TimeoutError),
        ("InvalidConfigError", ValueError),
        ("InvalidArgumentError", ValueError),
        ("InvalidTypeError", TypeError),
        ("IllegalStateError", RuntimeError),
    ],
)
def test_errors_are_the_builtin_ones_too(name: str, builtin: type[Exception]) -> None:
    error = getattr(headrace.errors, name)("what and why")
    assert isinstance(error, builtin)
    assert (error.message, str(error)) == ("what and why", "what and why")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message) == (type(error), "what and why")


@pytest.mark.parametrize(
    ("typed", "definition"), [(ProducerSettings, PRODUCER), (ConsumerSettings, CONSUMER), (AdminSettings, ADMIN)]
)
def test_typed_keywords_are_the_declared_keys(typed: Any, definition: ConfigDef) -> None:
    kinds = {
        Kind.BOOLEAN: bool | None,
        Kind.INT: int | None,
        Kind.LONG: int | None,
        Kind.DOUBLE: float | None,
        Kind.STRING: str | None,
        Kind.CLASS: Any,
    }
    hints = get_type_hints(typed)
    assert set(hints) == {name.replace(".", "_") for name in definition.keys}
    for name, key in definition.keys.items():
        hint = hints[name.replace(".", "_")]
        if key.kind in kinds and name != "acks":
            assert hint == kinds[key.kind], name


_SNIPPET = """
import headrace
from headrace import Admin, AsyncConsumer, AsyncProducer, Consumer, LocalCluster, Producer

Producer(bootstrap_servers="h:1", linger_ms=5, acks=1, key_serializer=str.encode)
Producer({"bootstrap.servers": "h:1"}, batch_size=None)
Consumer(bootstrap_servers=["h:1"], group_id="g", enable_auto_commit=False)
Admin(request_timeout_ms=5)
headrace.errors.SerializationError
Producer(bootstrap_server="h:1")  # wrong 1
AsyncProducer(group_id="g")  # wrong 2
Consumer(max_poll_records="5")  # wrong 3
AsyncConsumer(acks="all")  # wrong 4
Admin(bootstrap="h:1")  # wrong 5
"""


def test_type_checkers_find_wrong_keywords(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(_SNIPPET)
    sources = [ROOT / part for part in ("clients/python/src", "core/src", "protos/src")]
    options = "--follow-imports=silent --ignore-missing-imports --explicit-package-bases --namespace-packages"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options.split(), "--config-file=", f"--cache-dir={tmp_path}", str(program)],
        env={"MYPYPATH": ":".join(map(str, sources)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = {number for number, line in enumerate(_SNIPPET.splitlines(), 1) if "# wrong" in line}
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == wrong, done.stdout + done.stderr


def test_a_send_that_was_never_awaited_is_named_in_pythons_warning() -> None:
    coroutine = made("AsyncProducer").send("t", b"v")
    with pytest.warns(RuntimeWarning, match=r"coroutine 'AsyncProducer\.send' was never awaited"):
        del coroutine


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("brokers", "coordinators", "registries", "port") for value in ("3", 1.5, True)),
        ("data", 5),
        ("config", 5),
        ("config", {5: "x"}),
        ("racks", "east"),
        ("racks", [5]),
    ],
)
def test_local_cluster_refuses_wrong_arguments_before_it_starts_anything(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name}="):
        headrace.LocalCluster(**{name: value})
