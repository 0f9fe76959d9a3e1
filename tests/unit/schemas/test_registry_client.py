"""SchemaRegistry: requests, caches, several URLs, failures, forks, and answers that no registry should give."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.errors import InvalidConfigError
from headrace.schemas import (
    Compatibility,
    IncompatibleSchemaError,
    InvalidSchemaError,
    Mode,
    Reference,
    RegistryRefusedError,
    RegistryUnavailableError,
    Schema,
    SchemaNotFoundError,
    SchemaRegistry,
    SchemaType,
    UnknownSchemaIdError,
)
from headrace.serializers import WouldWait
from tests.worlds.registries import FakeRegistry, fake_registry
from tests.worlds.waiting import check_in_time, until

STRING = Schema('"string"')


@pytest.fixture
def refusing() -> Iterator[list[int]]:
    """Two ports that refuse connections. The test holds them, so that no other process listens there."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        yield [first.getsockname()[1], second.getsockname()[1]]


def test_a_registered_schema_is_found_by_id_version_and_text(registry: SchemaRegistry) -> None:
    made = registry.register("orders-value", STRING)
    assert (made.subject, made.version, made.id) == ("orders-value", 1, 1)
    assert registry.schema(1) == STRING
    assert registry.version("orders-value") == registry.version("orders-value", 1) == made
    assert registry.lookup("orders-value", STRING) == made
    assert registry.subjects() == ["orders-value"]
    assert registry.versions("orders-value") == [1]
    assert registry.uses(1) == [("orders-value", 1)]


def test_a_schema_is_asked_for_once(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    registry.register("a", STRING)
    before = len(fake.requests)
    for _ in range(5):
        registry.schema(1)
        registry.registered("a", STRING, normalize=False, register=False)
        registry.latest("a")
    assert [path for _, path in fake.requests[before:]] == [
        "/schemas/ids/1",
        "/schemas/ids/1/versions",
        "/subjects/a",
        "/subjects/a/versions/latest",
    ]


def test_names_of_subjects_are_quoted(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    subject = "a/b c?d=ä#%"
    registry.register(subject, STRING)
    assert registry.version(subject).subject == subject
    assert fake.requests[0] == ("POST", "/subjects/a%2Fb%20c%3Fd%3D%C3%A4%23%25/versions")


def test_a_cache_keeps_the_newest_entries(fake: FakeRegistry) -> None:
    for number in range(10):
        fake.add_avro("a", {"type": "fixed", "name": f"F{number}", "size": 1})
    registry = SchemaRegistry(fake.url, cache_capacity=3)
    for number in range(1, 11):
        registry.schema(number)
    before = len(fake.requests)
    registry.schema(10)
    assert len(fake.requests) == before
    registry.schema(1)
    assert len(fake.requests) == before + 2


def test_many_threads_share_one_request(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.add_avro("a", "string")
    fake.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(registry.schema, 1) for _ in range(8)]
        until(lambda: fake.requests)
        fake.gate.set()
        assert {each.result(10) for each in found} == {STRING}
    assert [path for _, path in fake.requests] == ["/schemas/ids/1", "/schemas/ids/1/versions"]


def test_a_caller_that_must_not_wait_gets_the_request_in_place_of_the_schema(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    fake.add_avro("a", "string")
    fake.gate.clear()
    waiting = []
    for _ in range(3):
        with pytest.raises(WouldWait) as raised:
            registry.resolved(1, may_wait=False)
        waiting.append(raised.value)
    assert len({each.request for each in waiting}) == 1
    assert not waiting[0].block(time.monotonic() + 0.05)
    fake.gate.set()
    assert waiting[0].block(time.monotonic() + 10)
    assert registry.resolved(1, may_wait=False).schema == STRING


def test_a_failure_is_repeated_for_a_moment_without_a_request(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    with SchemaRegistry(fake.url, retries=0, failure_cache_ms=60_000) as remembering:
        for _ in range(5):
            with pytest.raises(UnknownSchemaIdError):
                remembering.schema(1)
    assert len(fake.requests) == 1
    with pytest.raises(UnknownSchemaIdError):
        registry.schema(1)
    fake.add_avro("a", "string")

    def found() -> Schema | None:
        with contextlib.suppress(UnknownSchemaIdError):
            return registry.schema(1)
        return None

    assert until(found) == STRING


def test_the_next_url_is_tried_when_one_is_down(fake: FakeRegistry, refusing: list[int]) -> None:
    fake.add_avro("a", "string")
    registry = SchemaRegistry(f"http://127.0.0.1:{refusing[0]},{fake.url}", retries=0)
    assert registry.subjects() == ["a"]
    began = time.monotonic()
    assert registry.versions("a") == [1]
    check_in_time(began, 5, "the time-out of a request is 30 s")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_the_next_url_is_tried_when_one_is_busy(fake: FakeRegistry, status: int) -> None:
    fake.add_avro("a", "string")
    with fake_registry() as other:
        other.answers["GET", "/subjects"] = status, {"error_code": 50003, "message": "no writer"}
        assert SchemaRegistry([other.url, fake.url], retries=0).subjects() == ["a"]
        assert len(other.requests) == 1


def test_a_url_that_failed_is_tried_last_for_a_while(fake: FakeRegistry) -> None:
    with fake_registry() as other:
        other.answers["GET", "/subjects"] = 503, {}
        registry = SchemaRegistry([other.url, fake.url], retries=0)
        for _ in range(5):
            registry.subjects()
        assert len(other.requests) == 1


def test_all_urls_are_tried_again_before_the_error_names_them(refusing: list[int]) -> None:
    first, second = refusing
    registry = SchemaRegistry(
        [f"http://127.0.0.1:{first}", f"http://user:secret@127.0.0.1:{second}/path"], retries=2, retry_backoff_ms=1
    )
    with pytest.raises(RegistryUnavailableError) as refused:
        registry.schema(1)
    assert refused.value.retriable
    text = refused.value.message
    assert f"http://127.0.0.1:{first}: connection refused; http://127.0.0.1:{second}/path: connection refused" in text
    assert "headrace up --registries 1" in text
    assert "secret" not in text + repr(registry)


def test_a_silent_registry_costs_the_request_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(10)
        registry = SchemaRegistry(f"http://127.0.0.1:{silent.getsockname()[1]}", request_timeout_ms=200, retries=0)
        began = time.monotonic()
        with pytest.raises(RegistryUnavailableError, match=r"no answer within 0\.2 s \(request\.timeout\.ms\)"):
            registry.schema(1)
        check_in_time(began, 5)


def test_cached_schemas_are_there_when_the_registry_is_not(fake: FakeRegistry) -> None:
    fake.add_avro("a", "string")
    registry = SchemaRegistry(fake.url, retries=0, latest_cache_ttl_ms=0)
    registry.schema(1)
    registry.latest("a")
    registry.registered("a", STRING, normalize=False, register=False)
    fake.stop()
    assert registry.schema(1) == STRING
    assert registry.latest("a").registered.id == 1
    assert registry.registered("a", STRING, normalize=False, register=False).id == 1
    with pytest.raises(RegistryUnavailableError):
        registry.schema(2)


def test_the_latest_version_is_asked_for_again_in_the_background(fake: FakeRegistry) -> None:
    fake.add_avro("a", "string")
    registry = SchemaRegistry(fake.url, latest_cache_ttl_ms=0)
    assert registry.latest("a").registered.version == 1
    fake.add_avro("a", "int")
    until(lambda: registry.latest("a", may_wait=False).registered.version == 2)


def test_a_kept_connection_that_the_server_closed_is_opened_again() -> None:
    """Each connection answers one request, and then ends without a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                with peer:
                    peer.recv(65536)
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        registry = SchemaRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", retries=0)
        assert registry.subjects() == []
        assert registry.subjects() == []
        thread.join(10)


def test_a_body_that_is_refused_unread_gets_the_reason() -> None:
    """A server that answers and closes before it has read the body resets the connection."""
    body = b'{"error_code": 413, "message": "the body is too large"}'
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(100)
                head = f"HTTP/1.1 413 Content Too Large\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                accepted.sendall(head.encode() + body)

        thread = threading.Thread(target=serve)
        thread.start()
        registry = SchemaRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", retries=0)
        with pytest.raises(RegistryRefusedError, match="the body is too large"):
            registry.register(
                "big", Schema(json.dumps({"type": "fixed", "name": "F", "size": 1, "doc": "x" * 20_000_000}))
            )
        thread.join()


def test_a_delete_whose_outcome_is_unknown_is_not_repeated(fake: FakeRegistry) -> None:
    fake.answers["DELETE", "/subjects/a"] = 500, {"message": "half done"}
    with fake_registry() as other:
        registry = SchemaRegistry([fake.url, other.url])
        with pytest.raises(RegistryUnavailableError, match="may have carried out the request"):
            registry.delete_subject("a")
        assert other.requests == []
    assert len(fake.requests) == 1


#: (method, path, status, body, call, error)
ANSWERS: list[tuple[str, str, int, Any, Any, type[Exception], str]] = [
    ("GET", "/schemas/ids/9", 404, {"error_code": 40403}, lambda r: r.schema(9), UnknownSchemaIdError, "id 9"),
    (
        "GET", "/subjects/a/versions/2", 404, {"error_code": 40402, "message": "Version 2 not found."},
        lambda r: r.version("a", 2), SchemaNotFoundError, "subject 'a' version 2: Version 2 not found",
    ),
    (
        "POST", "/subjects/a/versions", 422, {"error_code": 42201, "message": "bad type (path '/fields/2')"},
        lambda r: r.register("a", STRING), InvalidSchemaError, "bad type",
    ),
    (
        "POST", "/subjects/a/versions", 422, {"error_code": 42205, "message": "Subject a is in read-only mode"},
        lambda r: r.register("a", STRING), RegistryRefusedError, "read-only mode",
    ),
    ("GET", "/subjects", 401, {"message": "Unauthorized"}, lambda r: r.subjects(), RegistryRefusedError, "auth"),
    ("GET", "/subjects", 200, b"<html>", lambda r: r.subjects(), RegistryUnavailableError, "of a schema registry?"),
    ("GET", "/subjects", 200, {"a": 1}, lambda r: r.subjects(), RegistryRefusedError, "is not a list of str"),
    ("GET", "/subjects", 200, b"[" * 100_000, lambda r: r.subjects(), RegistryUnavailableError, "instead of JSON"),
    ("GET", "/schemas/ids/9", 200, {"x": 1}, lambda r: r.schema(9), RegistryRefusedError, "is not a schema"),
    ("GET", "/schemas/ids/9", 200, {"schema": 5}, lambda r: r.schema(9), RegistryRefusedError, "is not a schema"),
    ("GET", "/schemas/ids/9", 200, [], lambda r: r.schema(9), RegistryRefusedError, "is not a schema"),
    (
        "GET", "/schemas/ids/9", 200, {"schema": "x", "schemaType": "XML"}, lambda r: r.schema(9),
        RegistryRefusedError, "is not a schema",
    ),
    (
        "GET", "/subjects/a/versions/latest", 200, {"schema": "x"}, lambda r: r.version("a"), RegistryRefusedError,
        "describes no version",
    ),
    ("POST", "/subjects/a/versions", 200, {}, lambda r: r.register("a", STRING), RegistryRefusedError, "has no id"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "status", "body", "call", "error", "text"), ANSWERS)
def test_answers_become_typed_errors(
    fake: FakeRegistry,
    registry: SchemaRegistry,
    method: str,
    path: str,
    status: int,
    body: Any,
    call: Any,
    error: type[Exception],
    text: str,
) -> None:
    fake.answers[method, path] = status, body
    with pytest.raises(error) as raised:
        call(registry)
    assert text in str(raised.value)
    if path.startswith("/subjects/a/") and status >= 400:
        assert raised.value.subject == "a"  # type: ignore[attr-defined]


CONFLICT = (
    'Schema being registered is incompatible with an earlier schema for subject "a", details: '
    "[{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'z' at path '/fields/1' in the new "
    "schema has no default value and is missing in the old schema', additionalInfo:'z'}, {oldSchemaVersion: 3}, "
    "{oldSchema: '\"string\"'}, {compatibility: 'BACKWARD'}]"
)


def test_an_incompatible_schema_names_subject_version_and_field(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.refuses = 409, {"error_code": 409, "message": CONFLICT}
    with pytest.raises(IncompatibleSchemaError) as refused:
        registry.register("a", STRING)
    error = refused.value
    assert (error.subject, error.version, error.path) == ("a", 3, "/fields/1")
    assert error.reasons == (
        "READER_FIELD_MISSING_DEFAULT_VALUE: The field 'z' at path '/fields/1' in the new schema has no default value "
        "and is missing in the old schema (z)",
    )


def test_a_check_returns_the_reasons(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    path = "/compatibility/subjects/a/versions/latest"
    fake.answers["POST", path] = 200, {"is_compatible": True}
    assert registry.check("a", STRING) == []
    messages = ["{errorType:'NAME_MISMATCH', description:'The name', additionalInfo:''}", "{oldSchemaVersion: 3}"]
    fake.answers["POST", path] = 200, {"is_compatible": False, "messages": messages}
    assert registry.check("a", STRING) == ["NAME_MISMATCH: The name"]
    fake.answers["POST", path] = 200, {"is_compatible": False}
    assert registry.check("a", STRING) == ["the registry gives no reason"]
    fake.answers["POST", path] = 404, {"error_code": 40401, "message": "no subject"}
    assert registry.check("a", STRING) == []
    fake.answers["POST", "/compatibility/subjects/a/versions"] = 200, {"is_compatible": True}
    assert registry.check("a", STRING, None) == []


def test_levels_and_modes_are_read_and_set(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.answers["GET", "/config"] = 200, {"compatibilityLevel": "FULL"}
    fake.answers["GET", "/config/a"] = 200, {"compatibilityLevel": "NONE"}
    fake.answers["GET", "/mode/a"] = 200, {"mode": "READONLY"}
    for path in ("/config", "/config/a", "/mode"):
        fake.answers["PUT", path] = fake.answers["DELETE", path] = 200, {}
    assert registry.compatibility() is Compatibility.FULL
    assert registry.compatibility("a") is Compatibility.NONE
    assert registry.mode("a") is Mode.READONLY
    registry.set_compatibility("FULL")
    registry.set_compatibility(None, "a")
    registry.set_mode(Mode.IMPORT, force=True)
    assert fake.requests[-3:] == [("PUT", "/config"), ("DELETE", "/config/a"), ("PUT", "/mode?force=true")]


def test_references_come_in_the_order_of_their_needs(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    for name, needs in (("a", []), ("b", ["a"]), ("c", ["b", "a"])):
        references = [{"name": each, "subject": each, "version": 1} for each in needs]
        fake.add(name, {"schema": f'"{name}"', "references": references})
    assert list(registry.resolved(3).references) == ["a", "b"]
    assert registry.schema(3).references == (Reference("b", "b", 1), Reference("a", "a", 1))


def test_a_cycle_of_references_is_refused(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    for name, needs in (("a", "b"), ("b", "a")):
        fake.add(name, {"schema": f'"{name}"', "references": [{"name": needs, "subject": needs, "version": 1}]})
    with pytest.raises(InvalidSchemaError, match="form a cycle: b -> a -> b") as refused:
        registry.schema(1)
    assert (refused.value.schema_id, refused.value.subject, refused.value.path) == (1, "b", "b")


def test_too_many_references_are_refused(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    references = [{"name": f"r{number}", "subject": "s", "version": 1} for number in range(1_001)]
    fake.add("s", {"schema": '"int"'})
    fake.add("a", {"schema": '"string"', "references": references})
    with pytest.raises(InvalidSchemaError, match="the limits are 1,000 schemas"):
        registry.schema(2)


def test_an_endless_answer_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    while True:
                        peer.sendall(b" " * 1_000_000)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        registry = SchemaRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", retries=0)
        with pytest.raises(RegistryUnavailableError, match="larger than 33,554,432 bytes"):
            registry.subjects()
        thread.join(10)
        assert not thread.is_alive()


def test_passwords_and_tokens_are_sent(fake: FakeRegistry) -> None:
    host = fake.url.removeprefix("http://")
    SchemaRegistry(f"http://ann:pass%20word@{host}").subjects()
    SchemaRegistry({"schema.registry.url": fake.url, "basic.auth.user.info": "ann:pass word"}).subjects()
    SchemaRegistry(fake.url, bearer_auth_token="t0ken").subjects()
    assert [each["Authorization"] for each in fake.headers] == ["Basic YW5uOnBhc3Mgd29yZA=="] * 2 + ["Bearer t0ken"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"url": "ftp://x"}, "'ftp://x' is not a URL of a registry"),
        ({"url": "http://x:port"}, "is not a URL of a registry"),
        ({"url": "http://user:secret@/x"}, "'/x' is not a URL"),
        ({"schema_registry_urls": "http://x"}, "did you mean"),
        ({"basic_auth_user_info": "ann"}, "must be user:password"),
        ({"basic_auth_user_info": "a:b", "bearer_auth_token": "t"}, "only one of"),
        ({"url": "https://x", "ssl_ca_location": "/nowhere.pem"}, "cannot load the PEM files"),
        ({"url": "https://x", "ssl_key_location": "/nowhere.pem"}, "needs ssl.certificate.location"),
        ({"url": "http://x", "schema_registry_url": "http://y"}, "is given twice"),
        ({"retries": -1}, "retries"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        SchemaRegistry(**settings)
    assert text in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_client_is_pickled_as_its_settings(fake: FakeRegistry) -> None:
    fake.add_avro("a", "string")
    registry = pickle.loads(pickle.dumps(SchemaRegistry({"url": fake.url}, cache_capacity=7)))
    assert registry.cache_capacity == 7
    assert registry.subjects() == ["a"]


def test_a_closed_client_goes_on_with_its_cache(fake: FakeRegistry) -> None:
    fake.add_avro("a", "string")
    with SchemaRegistry(fake.url) as registry:
        registry.schema(1)
    assert registry.schema(1) == STRING
    with pytest.raises(RegistryUnavailableError, match="is closed"):
        registry.schema(2)


def test_a_fork_opens_its_own_connections_and_keeps_the_cache(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.add_avro("a", "string")
    fake.add_avro("a", "int")
    registry.schema(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = [registry.schema(1).text, registry.schema(2).text, registry.versions("a")]
            os.write(write, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert json.loads(answer.read()) == ['"string"', '"int"', [1, 2]]
    os.waitpid(child, 0)
    assert registry.schema(2) == Schema('"int"', SchemaType.AVRO), "the parent's connection still works"
