"""Media types, methods, paths, bodies that are no requests, and limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.schemas import SchemaRegistry
from headrace_core.unexpected import request_id_of
from headrace_registry.api import handlers, http
from headrace_registry.api.http import MEDIA_TYPES, negotiated
from headrace_registry.compat import STEPS_MAX, Incompatibility, Level
from headrace_registry.schemas import Parsed, SchemaType
from headrace_registry.schemas.model import SCHEMA_BYTES_MAX
from headrace_registry.state import decisions, parsing
from headrace_registry.state.records import SchemaKey, SchemaValue, encode_key, encode_schema
from tests.unit.registry.api.world import JSON, V1, Reply, World, record, world
from tests.worlds.this_process import logged
from tests.worlds.waiting import LoopClock, until_async

DEFAULT = "application/vnd.schemaregistry+json"


@pytest.fixture
def api() -> Iterator[World]:
    with world() as found:
        yield found


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, V1),
        ("", V1),
        ("*/*", V1),
        ("application/*", V1),
        (V1, V1),
        (DEFAULT, DEFAULT),
        (JSON, JSON),
        ("application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json", V1),
        (f"{JSON}, {DEFAULT};q=0.9", JSON),
        (f"{JSON};q=0.5, {DEFAULT};q=0.9", DEFAULT),
        (f"text/html, {JSON};q=0.1", JSON),
        ("Application/JSON", JSON),
        (f"{V1};q=0, */*", DEFAULT),
        ("text/html", None),
        ("application/json;q=0", None),
        ("application/json;q=nan", None),
        ("application/json;q=x", None),
        ("," * 5_000, None),
    ],
)
def test_the_answers_type_is_what_the_client_prefers(accept: str | None, expected: str | None) -> None:
    assert negotiated(accept) == expected


def test_answers_and_errors_have_the_negotiated_type(api: World) -> None:
    for media_type in MEDIA_TYPES:
        for path in ("/subjects", "/subjects/s/versions", "/nothing"):
            assert api.get(path, headers={"Accept": media_type}).headers["Content-Type"] == media_type
    reply = api.get("/subjects", headers={"Accept": "text/html"})
    assert reply.error == (406, 406, "HTTP 406 Not Acceptable")
    assert reply.headers["Content-Type"] == V1


def test_bodies_of_other_types_are_refused(api: World) -> None:
    data = b'{"schema":"\\"int\\""}'
    for media_type in (*MEDIA_TYPES, "application/octet-stream", f"{JSON}; charset=utf-8"):
        reply = api.post("/subjects/s/versions", data=data, headers={"Content-Type": media_type})
        assert reply.body == {"id": 1}, media_type
    for media_type in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        reply = api.post("/subjects/s/versions", data=data, headers={"Content-Type": media_type})
        assert reply.error == (415, 415, "HTTP 415 Unsupported Media Type")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/subjects/", 404),
        ("GET", "/subjects//versions", 404),
        ("GET", "/subjects/s/versions/1/nothing", 404),
        ("GET", "/schemas/ids/", 404),
        ("PATCH", "/subjects", 405),
        ("PUT", "/subjects/s/versions", 405),
        ("POST", "/config", 405),
        ("DELETE", "/schemas/ids/1", 405),
    ],
)
def test_unknown_paths_and_methods(api: World, method: str, path: str, status: int) -> None:
    name = {404: "Not Found", 405: "Method Not Allowed"}[status]
    assert api.call(method, path).error == (status, status, f"HTTP {status} {name}")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 422),
        (b"null", 422),
        (b"{", 400),
        (b"[]", 400),
        (b'"text"', 400),
        (b"\xff\xfe", 400),
        (b"[" * 200_000, 400),
        (b'{"schema":' + b"1" * 100_000 + b"}", 400),
        (b'{"schema":{"type":"string"}}', 400),
        (b'{"schema":7}', 400),
        (b'{"schema":"\\ud800"}', 400),
        (b'{"schema":"\\"int\\"","schemaType":1}', 400),
        (b'{"schema":"\\"int\\"","version":"1"}', 400),
        (b'{"schema":"\\"int\\"","version":1.5}', 400),
        (b'{"schema":"\\"int\\"","id":true}', 400),
        (b'{"schema":"\\"int\\"","id":2147483648}', 400),
        (b'{"schema":"\\"int\\"","references":"x"}', 400),
        (b'{"schema":"\\"int\\"","references":[1]}', 400),
        (b'{"schema":"\\"int\\"","references":[{"name":"n"}]}', 422),
        (b'{"schema":"\\"int\\"","references":[{"name":"n","subject":"s","version":0}]}', 422),
        (b'{"schema":"\\"int\\"","references":[' + b",".join([b"{}"] * 5_000) + b"]}", 422),
        (b"{}", 422),
    ],
    ids=lambda each: str(each)[:60],
)
def test_a_body_that_is_no_request(api: World, data: bytes, status: int) -> None:
    for path in ("/subjects/s/versions", "/compatibility/subjects/s/versions"):
        reply = api.post(path, data=data)
        assert reply.status == status, reply
        assert len(reply.text) < 1_000
    assert api.registry.writes == 0


@pytest.mark.parametrize("body", [{"compatibility": 1}, {"normalize": "yes"}, {"validateFields": 0}])
def test_settings_of_a_wrong_type(api: World, body: dict[str, object]) -> None:
    assert api.put("/config", body).status == 400
    assert api.registry.writes == 0


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_writes_nothing(api: World, site: str) -> None:
    """Browsers ask no permission for a POST whose body has no type (CORS)."""
    origin = {"Origin": "http://attacker.example", "Sec-Fetch-Site": site, "Content-Type": ""}
    data = json.dumps({"schema": '"int"'}).encode()
    reply = api.post("/subjects/s/versions", data=data, headers=origin)
    assert reply.error[:2] == (403, 403)
    assert api.get("/subjects", headers={"Sec-Fetch-Site": site}).body == []
    for own in ("same-origin", "none"):
        assert api.post("/subjects/s/versions", data=data, headers={**origin, "Sec-Fetch-Site": own}).status == 200


def test_a_body_that_is_too_long_is_refused_unread(api: World) -> None:
    async def announce(length: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.servers[0].port)
        writer.write(
            b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(length).encode() + b"\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head

    assert api.run(announce(http.BODY_BYTES_MAX + 1)).startswith(b"HTTP/1.1 413 ")
    assert api.run(announce(2**62)).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length_is_limited_too(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 1_000)

    async def stream() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.servers[0].port)
        writer.write(b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"3e9\r\n" + 1_001 * b"x" + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head

    assert api.run(stream()).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_sends_its_body_too_slowly_is_refused(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_S", 0.1)

    async def stall() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.servers[0].port)
        writer.write(b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head

    assert api.run(stall()).startswith(b"HTTP/1.1 408 ")
    monkeypatch.setattr(http, "BODY_S", 15.0)
    assert api.register("s", '"int"') == 1


async def refusal(api: World, *request: Any) -> Reply:
    """Send a request again until it is refused, because the server has begun another client's request."""
    while (reply := await api.send(*request)).status == 200:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return reply


def test_bodies_share_a_budget(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODIES_BYTES_MAX", 1_500)

    async def two() -> tuple[int, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.servers[0].port)
        writer.write(b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        refused = await refusal(api, "POST", "/subjects/s/versions", {"schema": '"int"', "pad": 600 * "x"})
        writer.write(b'"schema":"\\"int\\""}'.ljust(999))
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return refused.status, int(head.split()[1])

    assert api.run(two()) == (429, 200)
    for _ in range(3):
        assert api.post("/subjects/s/versions", {"schema": '"int"', "pad": 600 * "x"}).status == 200


def test_a_compressed_body_is_refused(api: World) -> None:
    headers = {"Content-Type": JSON, "Content-Encoding": "gzip"}
    body = gzip.compress(b'{"schema":"\\"int\\""}')
    reply = api.post("/subjects/s/versions", data=body, headers=headers)
    assert reply.error == (415, 415, "A body with Content-Encoding is not accepted; send it without compression")
    assert api.get("/subjects").body == []


def test_a_body_of_unknown_length_counts_as_the_longest_one(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODIES_BYTES_MAX", http.BODY_BYTES_MAX - 1)

    async def chunked() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.servers[0].port)
        writer.write(b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head

    assert api.run(chunked()).startswith(b"HTTP/1.1 429 ")


def test_further_requests_are_refused_at_once(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUESTS_MAX", 1)

    async def beside() -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", api.servers[0].port)
        writer.write(b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        reply = await refusal(api, "GET", "/subjects")
        writer.close()
        return reply.status

    assert api.run(beside()) == 429

    async def after() -> int:
        for _ in range(100):
            if (reply := await api.send("GET", "/subjects")).status == 200:
                break
            await asyncio.sleep(0.02)
        return reply.status

    assert api.run(after()) == 200


def test_a_schema_that_is_too_long(api: World) -> None:
    text = json.dumps(record("R", (SCHEMA_BYTES_MAX * "f", "int")))
    assert api.post("/subjects/s/versions", {"schema": text}).error == (
        422,
        42209,
        "Register operation failed because schema is too large",
    )
    reply = api.post("/subjects/s", {"schema": text})
    assert reply.error[:2] == (422, 42201)
    assert len(reply.text) < 15_000
    five_mb = json.dumps(record("R", (5_000_000 * "f", "int")))
    assert api.post("/subjects/s/versions", {"schema": five_mb}).error[:2] == (422, 42209)


def test_a_long_schema_is_registered_and_compared(api: World) -> None:
    fields = [(f"field_{number}", "int", 0) for number in range(3_000)]
    assert api.register("s", record("R", *fields)) == 1
    assert api.register("s", record("R", *fields, ("more", "int", 0))) == 2
    assert api.post("/subjects/s/versions", {"schema": json.dumps(record("R", ("x", "int")))}).status == 409
    assert api.post("/subjects/s", {"schema": json.dumps(record("R", *fields), indent=1)}).body["version"] == 1


def test_a_name_that_is_too_long(api: World) -> None:
    path = 1_025 * "s"
    assert api.post(f"/subjects/{path}/versions", {"schema": '"int"'}).error[:2] == (422, 42208)
    assert api.get(f"/subjects/{path}/versions").error[:2] == (422, 42208)
    assert api.register(1_024 * "s", '"int"') == 1
    assert api.get("/subjects/" + 20_000 * "s").status in (400, 414)


def test_our_client_lists_all_versions_although_a_page_is_too_large(
    api: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "PAGE_CHARACTERS_MAX", 2_000)
    for number in range(7):
        api.register(f"s{number}", record("R", (f"{number}".rjust(1_000, "f"), "int")))

    def listed() -> list[str]:
        with SchemaRegistry(api.url(0)) as registry:
            return [each.subject for each in registry.list_versions()]

    assert api.run(asyncio.to_thread(listed)) == [f"s{number}" for number in range(7)]


def test_our_client_lists_all_subjects_although_the_registry_limits_a_list(
    api: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "SUBJECTS_MAX", 1_000)
    names = [f"s{number:04}" for number in range(2_500)]
    for name in names:
        value = SchemaValue(name, 1, 1, SchemaType.AVRO, '"int"')
        api.topic.append((encode_key(SchemaKey(name, 1)), encode_schema(value)))

    async def listed() -> list[str]:
        api.registry.follow()
        with SchemaRegistry(api.url(0)) as registry:
            return await asyncio.to_thread(registry.subjects)

    assert api.run(listed()) == names


def test_a_replica_that_is_not_ready_answers_503(api: World) -> None:
    api.registry.is_ready = False
    reply = api.get("/subjects")
    assert reply.status == 503
    assert "starting or stopping" in reply.error[2]


def test_a_bug_is_an_internal_error_and_is_logged(api: World, caplog: pytest.LogCaptureFixture) -> None:
    api.registry.error = bug = ZeroDivisionError("a bug")
    status, code, message = api.put("/config", {"compatibility": "FULL"}).error
    assert (status, code) == (500, 500)
    assert message == f"Internal Server Error (request id {request_id_of(bug)})"
    (line,) = [each for each in logged(caplog) if each.exc_info]
    assert (line.exc_info[1], line.request_id) == (bug, request_id_of(bug))  # type: ignore[index, attr-defined]


def test_a_client_that_does_not_read_its_answer(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer counts until the client has read it, and no longer than ANSWER_S."""
    for number in range(6):
        text = json.dumps(record(f"R{number}", (1_000_000 * "f", "int")))
        assert api.post(f"/subjects/s{number}/versions", {"schema": text}).status == 200
    monkeypatch.setattr(http, "ANSWERS_BYTES_MAX", 10_000_000)
    monkeypatch.setattr(http, "ANSWER_S", 600.0)
    clock = LoopClock(api.loop)

    async def unread() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.servers[0].port, limit=1_000)
        writer.write(b"GET /schemas HTTP/1.1\r\nHost: x\r\n\r\n")
        return reader, writer

    _reader, writer = api.run(unread())
    assert api.run(refusal(api, "GET", "/schemas")).status == 429
    assert api.get("/subjects").status == 200
    clock.forward(600)

    async def accepted() -> None:
        while (await api.send("GET", "/schemas")).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    api.run(accepted())
    writer.close()


def test_long_versions_are_compared_in_a_thread_and_once(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison in the event loop would stop all requests, and the group would remove the writer."""
    threads: list[bool] = []

    def check(level: object, new: object, earlier: object, steps_max: int) -> list[object]:
        threads.append(threading.current_thread() is threading.main_thread())
        return []

    monkeypatch.setattr(handlers, "LONG_COMPARISON", 1_000)
    monkeypatch.setattr(decisions, "check", check)
    api.put("/config", {"compatibility": "BACKWARD_TRANSITIVE"})
    for number in range(5):
        api.register("s", record("R", (f"f{number}", "int", 0), (500 * "f", "int")))
    assert threads[-7:] == [False] * 7, "the first pairs are short"
    assert len(threads) == 4 + 3 + 2 + 1
    body = {"schema": json.dumps(record("R", (500 * "g", "int")))}
    for _ in range(2):
        assert api.post("/compatibility/subjects/s/versions", body).body == {"is_compatible": True}
    assert len(threads) == 10 + 5
    assert not any(threads[1:])


def test_short_versions_that_take_many_steps_are_compared_in_a_thread(
    api: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of four kilobytes can take a second, and there can be thirty versions."""
    compare = decisions.check
    begun: list[tuple[bool, int]] = []

    def check(level: Level, new: Parsed, earlier: Sequence[Parsed], steps_max: int) -> list[Incompatibility]:
        begun.append((threading.current_thread() is threading.main_thread(), steps_max))
        return compare(level, new, earlier, steps_max)

    monkeypatch.setattr(decisions, "check", check)
    parts = [{"maxLength": number} for number in range(1, 120)]
    for title in "ab":
        api.register("s", {"title": title, "anyOf": parts}, schemaType="JSON")
    assert begun == [(True, decisions.QUICK_STEPS_MAX), (False, STEPS_MAX)]


def test_versions_with_long_references_are_compared_in_a_thread(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def check(level: object, new: object, earlier: object, steps_max: int) -> list[object]:
        threads.append(threading.current_thread() is threading.main_thread())
        return []

    monkeypatch.setattr(handlers, "LONG_COMPARISON", 10_000)
    monkeypatch.setattr(decisions, "check", check)
    api.register("inner", record("Inner", *((f"{number}".rjust(500, "f"), "int") for number in range(30))))
    references = [{"name": "Inner", "subject": "inner", "version": 1}]
    for name in "ab":
        api.register("s", record("R", ("inner", "Inner"), (name, "int", 0)), references=references)
    body = {"schema": json.dumps(record("R", ("c", "int")))}
    assert api.post("/compatibility/subjects/s/versions", body).body == {"is_compatible": True}
    assert threads == [False, False]


def test_a_chain_of_references_that_is_too_deep_for_one_text(api: World) -> None:
    api.register("s0", record("R0", ("f", "int")))
    for number in range(1, 330):
        references = [{"name": f"R{number - 1}", "subject": f"s{number - 1}", "version": 1}]
        last = api.register(f"s{number}", record(f"R{number}", ("f", f"R{number - 1}")), references=references)
    reply = api.get(f"/schemas/ids/{last}?format=resolved")
    assert (reply.status, reply.body["error_code"]) == (422, 42201)
    assert "nest deeper than 128 levels" in reply.body["message"]
    body = {"schema": json.dumps(record("R329", ("f", "int")))}
    assert api.post("/subjects/s329", body).error == (404, 40403, "Schema not found")


def test_a_long_comparison_waits_a_limited_time_for_others(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    is_begun, is_free = threading.Event(), threading.Event()

    def check(level: object, new: object, earlier: object, steps_max: int) -> list[object]:
        is_begun.set()
        assert is_free.wait(10)
        return []

    api.register("s", record("R", (2_000 * "f", "int")))
    monkeypatch.setattr(handlers, "LONG_COMPARISON", 1_000)
    monkeypatch.setattr(handlers, "TURN_S", 0.1)
    monkeypatch.setattr(decisions, "check", check)
    bodies = [{"schema": json.dumps(record("R", (2_000 * each, "int")))} for each in "gh"]

    async def two() -> tuple[int, int, int]:
        path = "/compatibility/subjects/s/versions"
        first = asyncio.create_task(api.send("POST", path, bodies[0]))
        await until_async(is_begun.is_set, "the first comparison has begun")
        second = await api.send("POST", path, bodies[1])
        beside = await api.send("GET", "/subjects")
        is_free.set()
        return (await first).status, second.status, beside.status

    assert api.run(two()) == (200, 429, 200)
    assert api.post("/compatibility/subjects/s/versions", bodies[1]).status == 200


def test_a_long_schema_waits_a_limited_time_for_others(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's many long schemas must not keep the long schemas of all others waiting for minutes."""
    is_begun, is_free = threading.Event(), threading.Event()
    run = parsing.Job.run

    def slow(job: parsing.Job) -> Parsed:
        is_begun.set()
        assert is_free.wait(10)
        return run(job)

    monkeypatch.setattr(handlers, "LONG_SCHEMA", 1_000)
    monkeypatch.setattr(handlers, "TURN_S", 0.1)
    bodies = [{"schema": json.dumps(record("R", (2_000 * each, "int")))} for each in "gh"]

    async def two() -> tuple[int, int, int]:
        first = asyncio.create_task(api.send("POST", "/subjects/s/versions", bodies[0]))
        await until_async(is_begun.is_set, "the first schema is parsed")
        second = await api.send("POST", "/subjects/t/versions", bodies[1])
        beside = await api.send("GET", "/subjects")
        is_free.set()
        return (await first).status, second.status, beside.status

    with monkeypatch.context() as patch:
        patch.setattr(parsing.Job, "run", slow)
        assert api.run(two()) == (200, 429, 200)
    assert api.post("/subjects/t/versions", bodies[1]).status == 200


def test_a_replica_that_was_suspended_answers_only_from_a_current_image(api: World) -> None:
    api.registries[0].is_current = False
    reply = api.get("/subjects")
    assert reply.error == (503, 503, "This replica of the registry was suspended; send the request again")
    api.registries[0].is_current = True
    assert api.get("/subjects").status == 200
