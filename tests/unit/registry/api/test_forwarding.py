"""Writes on a replica that is not the writer: forwarded once, answered as by the writer, read by the client at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace.errors import NotEnoughReplicasError, RecordTooLargeError
from headrace_registry.api import forwarding
from headrace_registry.registry import WriteTimeoutError
from tests.unit.registry.api.world import JSON, V1, World, record, world
from tests.worlds.waiting import until_async

FULL = {"compatibility": "FULL"}
#: Request, body, and Confluent's messages: not forwarded, and no writer.
WRITES: list[tuple[str, object, str, str]] = [
    (
        "POST /subjects/s/versions",
        {"schema": '"int"'},
        "Error while forwarding register schema request to the leader",
        "Leader not known.",
    ),
    (
        "DELETE /subjects/s",
        None,
        "Error while forwarding delete subject request to the leader",
        "Leader not known.",
    ),
    (
        "DELETE /subjects/s/versions/1",
        None,
        "Error while forwarding delete schema version request to the leader",
        "Leader not known.",
    ),
    (
        "PUT /config/s",
        FULL,
        "Error while forwarding update config request to the leader",
        "Failed to update compatibility level",
    ),
    (
        "DELETE /config/s",
        None,
        "Error while forwarding delete config request to the leader",
        "Failed to delete compatibility level",
    ),
    (
        "PUT /mode/s",
        {"mode": "READONLY"},
        "Error while forwarding update mode request to the leader",
        "Failed to update mode",
    ),
    ("DELETE /mode/s", None, "Error while forwarding delete mode request to the leader", "Failed to delete mode"),
]
by_request = pytest.mark.parametrize(
    ("request_line", "body", "not_forwarded", "no_writer"), WRITES, ids=[each[0] for each in WRITES]
)


@pytest.fixture
def cluster() -> Iterator[World]:
    with world(3) as found:
        yield found


def applied_by_all(api: World) -> None:
    """Wait until each replica has applied all records."""
    api.run(until_async(lambda: {each.image.offset for each in api.registries} == {len(api.topic) - 1}))


def call(api: World, request_line: str, body: object, **more: object) -> tuple[int, int, str]:
    method, path = request_line.split(" ")
    return api.call(method, path, body, **more).error  # type: ignore[arg-type]


def test_every_write_is_answered_alike_by_all_replicas() -> None:
    steps: list[tuple[str, str, object]] = [
        ("POST", "/subjects/a%2Fb%25/versions?normalize=true", {"schema": json.dumps(record("R", ("f", "int")))}),
        ("POST", "/subjects/a%2Fb%25/versions", {"schema": json.dumps(record("R", ("f", "string")))}),
        ("PUT", "/config/a%2Fb%25", {"compatibility": "none"}),
        ("POST", "/subjects/a%2Fb%25/versions", {"schema": json.dumps(record("R", ("f", "string")))}),
        ("DELETE", "/config/a%2Fb%25", None),
        ("PUT", "/mode/a%2Fb%25?force=true", {"mode": "IMPORT"}),
        ("DELETE", "/mode/a%2Fb%25", None),
        ("DELETE", "/subjects/a%2Fb%25/versions/2?permanent=true", None),
        ("DELETE", "/subjects/a%2Fb%25/versions/2", None),
        ("DELETE", "/subjects/a%2Fb%25/versions/2?permanent=true", None),
        ("DELETE", "/subjects/a%2Fb%25", None),
        ("DELETE", "/subjects/a%2Fb%25?permanent=true", None),
        ("DELETE", "/subjects/a%2Fb%25?permanent=true", None),
    ]
    transcripts = []
    for replica in (0, 1):
        with world(2) as api:
            replies = [api.call(method, path, body, replica=replica) for method, path, body in steps]
            transcripts.append([(each.status, each.text, each.headers["Content-Type"]) for each in replies])
            applied_by_all(api)
    assert transcripts[0] == transcripts[1]
    assert {status for status, _, _ in transcripts[0]} == {200, 404, 409}


def test_a_client_reads_its_own_write_from_the_replica_that_forwarded_it(
    cluster: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "SEEN_S", 15.0)
    cluster.registries[1].lag_s = 0.3
    begun = time.monotonic()
    assert cluster.post("/subjects/s/versions", {"schema": '"int"'}, replica=1).body == {"id": 1}
    assert time.monotonic() - begun > 0.05
    assert cluster.get("/schemas/ids/1", replica=1).status == 200


def test_a_replica_that_lags_does_not_hold_a_write_for_long(cluster: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "SEEN_S", 0.05)
    cluster.registries[1].lag_s = 60.0
    cluster.run(asyncio.sleep(0.05))  # the replica begins its wait
    assert cluster.post("/subjects/s/versions", {"schema": '"int"'}, replica=1).body == {"id": 1}


def test_a_known_schema_needs_no_writer(cluster: World) -> None:
    cluster.register("s", '"int"')
    applied_by_all(cluster)
    for registry in cluster.registries:
        registry.is_writer, registry.writer_url = False, None
    for replica in range(3):
        assert cluster.post("/subjects/s/versions", {"schema": ' "int"'}, replica=replica).body == {"id": 1}
        assert cluster.post("/subjects/s/versions", {"schema": '"int"', "id": 2}, replica=replica).status == 500


@by_request
def test_without_a_writer(cluster: World, request_line: str, body: object, not_forwarded: str, no_writer: str) -> None:
    cluster.registries[1].writer_url = None
    assert call(cluster, request_line, body, replica=1) == (500, 50004, no_writer)


@by_request
def test_a_writer_that_cannot_be_reached(
    cluster: World, request_line: str, body: object, not_forwarded: str, no_writer: str
) -> None:
    cluster.registries[1].writer_url = "http://127.0.0.1:1"
    assert call(cluster, request_line, body, replica=1) == (500, 50003, not_forwarded)


@pytest.mark.parametrize(
    "subject", ["%2E%2E", "%2E", "a%2F%2E%2E", "%ff", "a%2Bb", "a+b", "a%252Fb", "%3F%23", "%C3%A4"]
)
def test_a_name_is_forwarded_as_the_client_wrote_it(cluster: World, subject: str) -> None:
    assert cluster.post(f"/subjects/{subject}/versions", {"schema": '"int"'}, replica=1).status == 200
    assert cluster.put(f"/config/{subject}", FULL, replica=1).body == FULL
    assert cluster.get(f"/subjects/{subject}/versions").body == [1]
    assert cluster.delete(f"/subjects/{subject}/versions/1", replica=1).body == 1
    assert cluster.get("/subjects").body == []


@by_request
def test_a_request_is_forwarded_once(
    cluster: World, request_line: str, body: object, not_forwarded: str, no_writer: str
) -> None:
    """Two replicas that name each other as the writer must not send a request back and forth."""
    cluster.registries[1].writer_url = cluster.url(2)
    cluster.registries[2].writer_url = cluster.url(1)
    assert call(cluster, request_line, body, replica=1) == (500, 50004, no_writer)


@pytest.mark.parametrize("is_reachable", [True, False], ids=["it steps down", "it cannot be reached"])
def test_a_request_starts_over_when_the_writer_has_changed(cluster: World, is_reachable: bool) -> None:
    """The writer that replica 1 knows has not written: replica 1 waits for another one."""
    cluster.registries[2].writer_url = None
    cluster.registries[1].writer_url = cluster.url(2) if is_reachable else "http://127.0.0.1:1"
    cluster.registries[1].next_writer = cluster.url(0)
    assert cluster.post("/subjects/s/versions", {"schema": '"int"'}, replica=1).body == {"id": 1}
    assert cluster.registry.writes > 0
    assert cluster.registries[1].writes == 0


def test_a_request_starts_over_when_the_writer_stops(cluster: World) -> None:
    cluster.registries[2].is_ready = False
    cluster.registries[1].writer_url = cluster.url(2)
    cluster.registries[1].next_writer = cluster.url(0)
    assert cluster.post("/subjects/s/versions", {"schema": '"int"'}, replica=1).body == {"id": 1}


def test_a_replica_that_lags_forwards_a_schema_whose_reference_it_does_not_know(cluster: World) -> None:
    cluster.registries[1].lag_s = 60.0
    cluster.run(asyncio.sleep(0.05))  # the replica begins its wait
    cluster.register("a", record("A", ("f", "int")))
    referring = {
        "schema": json.dumps(record("B", ("a", "A"))),
        "references": [{"name": "A", "subject": "a", "version": 1}],
    }
    assert cluster.post("/subjects/b/versions", referring, replica=1).body == {"id": 2}
    referring["references"] = [{"name": "A", "subject": "missing", "version": 1}]
    assert cluster.post("/subjects/c/versions", referring, replica=1).error[:2] == (422, 42201)


def test_a_request_starts_over_on_its_own_replica_when_that_has_become_the_writer(cluster: World) -> None:
    registry = cluster.registries[1]

    async def elected(url: str) -> bool:
        registry.is_writer = True
        return True

    registry.writer_url = "http://127.0.0.1:1"
    registry.wait_for_other_writer = elected  # type: ignore[method-assign]
    assert cluster.post("/subjects/s/versions", {"schema": '"int"'}, replica=1).body == {"id": 1}
    assert registry.writes > 0


def test_a_request_starts_over_a_few_times_only(cluster: World) -> None:
    """Replicas 1 and 2 name each other, and replica 1 believes each time that another writer has been elected."""
    cluster.registries[1].writer_url, cluster.registries[2].writer_url = cluster.url(2), cluster.url(1)
    waits: list[str] = []

    async def elected(url: str) -> bool:
        waits.append(url)
        return True

    cluster.registries[1].wait_for_other_writer = elected  # type: ignore[method-assign]
    assert cluster.post("/subjects/s/versions", {"schema": '"int"'}, replica=1).error[1] == 50004
    assert waits == [cluster.url(2)] * (forwarding.FORWARDS_MAX - 1)


def test_the_accepted_type_is_the_writers_too(cluster: World) -> None:
    for media_type in (JSON, V1):
        reply = cluster.put("/config", FULL, replica=1, headers={"Accept": media_type})
        assert (reply.status, reply.headers["Content-Type"]) == (200, media_type)


def test_headers_of_the_client_that_are_none_of_the_writers_are_not_passed(cluster: World) -> None:
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return web.json_response({"compatibility": "FULL"})

    with_fake_writer(cluster, answer, {"Cookie": "a=b", "Authorization": "Basic eA=="})
    (headers,) = seen
    assert headers["X-Forward"] == "true"
    assert headers["Authorization"] == "Basic eA=="
    assert "Cookie" not in headers


def test_a_writer_that_hangs(cluster: World) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    with world(2, write_timeout_s=-0.9) as api:
        assert with_fake_writer(api, hang) == (
            500,
            50003,
            "Error while forwarding update config request to the leader",
        )


def test_a_writer_that_answers_too_much(cluster: World) -> None:
    async def flood(request: web.Request) -> web.Response:
        return web.Response(body=(forwarding.ANSWER_BYTES_MAX + 1) * b"x")

    assert with_fake_writer(cluster, flood)[1] == 50003


def test_a_redirect_of_the_writer_is_not_followed(cluster: World) -> None:
    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"http://127.0.0.1:1{request.path}")

    assert with_fake_writer(cluster, redirect, expect_json=False)[0] == 307


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WriteTimeoutError("late"), (500, 50002, "Register operation timed out")),
        (RecordTooLargeError("long"), (422, 42209, "Register operation failed because schema is too large")),
        (
            NotEnoughReplicasError("one left"),
            (500, 50001, "Register schema operation failed while writing to the Kafka store"),
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_write_that_fails_on_the_writer(
    cluster: World, error: Exception, expected: tuple[int, int, str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.registry.error = error
    for replica in (0, 1):
        assert cluster.post("/subjects/s/versions", {"schema": '"int"'}, replica=replica).error == expected
    is_fault_of_the_client = expected[0] == 422
    assert is_fault_of_the_client or f"POST /subjects/s/versions: {error}" in caplog.text


def with_fake_writer(
    api: World,
    answer: Callable[[web.Request], object],
    headers: dict[str, str] | None = None,
    *,
    expect_json: bool = True,
) -> tuple[int, int, str]:
    """Send a write to replica 1, whose writer is a server that answers with ``answer``."""

    @asynccontextmanager
    async def fake() -> AsyncIterator[TestServer]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)  # type: ignore[arg-type]
        server = TestServer(app)
        await server.start_server()
        try:
            yield server
        finally:
            await server.close()

    async def send() -> tuple[int, int, str]:
        async with fake() as server:
            api.registries[1].writer_url = str(server.make_url("")).rstrip("/")
            reply = await api.send("PUT", "/config", FULL, replica=1, headers=headers)
            if expect_json and reply.status != 200:
                return reply.error
            return reply.status, 0, ""

    found: tuple[int, int, str] = api.run(send())
    return found
