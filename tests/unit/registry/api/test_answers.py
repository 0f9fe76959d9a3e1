"""Answers to the letter: status, JSON text with the order of its fields, codes and messages of Confluent's 7.x.

Each scenario is a transcript: the lines are requests, and what the registry must answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.registry.api.world import V1, World, record, world

# What a step does -> the exact text of the answer. A body without "schema" is sent as it is.
Step = tuple[str, Any, int, str]

USER = record("User", ("name", "string"))
USER_2 = record("User", ("name", "string"), ("age", "int", 0))
USER_TEXT = json.dumps(USER, separators=(",", ":"))
ESCAPED = json.dumps(USER_TEXT)
ESCAPED_2 = json.dumps(json.dumps(USER_2, separators=(",", ":")))
PERSON = '{"type":"object","properties":{"name":{"type":"string"}},"additionalProperties":false}'


@pytest.fixture
def api() -> Iterator[World]:
    with world() as found:
        yield found


def error(code: int, message: str) -> str:
    return json.dumps({"error_code": code, "message": message}, separators=(",", ":"), ensure_ascii=False)


def schema(value: object, **more: Any) -> dict[str, Any]:
    return {"schema": value if isinstance(value, str) else json.dumps(value), **more}


def play(api: World, *steps: Step) -> None:
    for request, body, status, text in steps:
        method, path = request.split(" ", 1)
        reply = api.call(method, path, body)
        assert (reply.status, reply.text) == (status, text), request
        assert reply.headers["Content-Type"] == V1


def test_the_documented_examples(api: World) -> None:
    """The transcript of Confluent's API usage examples."""
    string = {"schema": '{"type": "string"}'}
    play(
        api,
        ("POST /subjects/Kafka-key/versions", string, 200, '{"id":1}'),
        ("POST /subjects/Kafka-value/versions", string, 200, '{"id":1}'),
        ("GET /subjects", None, 200, '["Kafka-key","Kafka-value"]'),
        ("GET /schemas/ids/1", None, 200, '{"schema":"\\"string\\""}'),
        ("GET /subjects/Kafka-value/versions", None, 200, "[1]"),
        (
            "GET /subjects/Kafka-value/versions/1",
            None,
            200,
            '{"subject":"Kafka-value","version":1,"id":1,"schema":"\\"string\\""}',
        ),
        ("DELETE /subjects/Kafka-value/versions/1", None, 200, "1"),
        ("POST /subjects/Kafka-value/versions", string, 200, '{"id":1}'),
        ("DELETE /subjects/Kafka-value/versions/latest", None, 200, "2"),
        (
            "POST /subjects/Kafka-key",
            string,
            200,
            '{"subject":"Kafka-key","version":1,"id":1,"schema":"\\"string\\""}',
        ),
        ("POST /compatibility/subjects/Kafka-key/versions/latest", string, 200, '{"is_compatible":true}'),
        ("GET /config", None, 200, '{"compatibilityLevel":"BACKWARD"}'),
        ("PUT /config", {"compatibility": "NONE"}, 200, '{"compatibility":"NONE"}'),
        ("PUT /config/Kafka-key", {"compatibility": "BACKWARD"}, 200, '{"compatibility":"BACKWARD"}'),
        ("DELETE /subjects/Kafka-key", None, 200, "[1]"),
        ("GET /subjects", None, 200, "[]"),
    )


def test_versions_of_a_subject(api: World) -> None:
    play(
        api,
        ("GET /subjects/s/versions", None, 404, error(40401, "Subject 's' not found.")),
        ("GET /subjects/s/versions/1", None, 404, error(40401, "Subject 's' not found.")),
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":1}'),
        ("POST /subjects/s/versions", schema(USER_2), 200, '{"id":2}'),
        ("POST /subjects/s/versions", schema(json.dumps(USER, indent=2)), 200, '{"id":1}'),
        ("GET /subjects/s/versions", None, 200, "[1,2]"),
        ("GET /subjects/s/versions?offset=1&limit=5", None, 200, "[2]"),
        ("GET /subjects/s/versions?offset=0&limit=1", None, 200, "[1]"),
        ("GET /subjects/s/versions/2/schema", None, 200, json.loads(ESCAPED_2)),
        (
            "GET /subjects/s/versions/latest",
            None,
            200,
            f'{{"subject":"s","version":2,"id":2,"schema":{ESCAPED_2}}}',
        ),
        ("GET /subjects/s/versions/-1/schema", None, 200, json.loads(ESCAPED_2)),
        ("GET /subjects/s/versions/3", None, 404, error(40402, "Version 3 not found.")),
    )


@pytest.mark.parametrize(
    ("version", "shown"),
    [("0", "0"), ("-2", "-2"), ("x", "x"), ("1.0", "1.0"), ("2147483648", "2147483648"), ("1_0", "1_0")],
)
def test_an_invalid_version(api: World, version: str, shown: str) -> None:
    message = (
        f"The specified version '{shown}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"'
    )
    for request in (
        f"GET /subjects/s/versions/{version}",
        f"DELETE /subjects/s/versions/{version}",
        f"GET /subjects/s/versions/{version}/referencedby",
    ):
        play(api, (request, None, 422, error(42202, message)))
    play(api, (f"POST /compatibility/subjects/s/versions/{version}", schema(USER), 422, error(42202, message)))


def test_soft_and_permanent_deletion_of_a_subject(api: World) -> None:
    soft = "Subject 's' was soft deleted.Set permanent=true to delete permanently"
    not_soft = "Subject 's' was not deleted first before being permanently deleted"
    play(
        api,
        ("DELETE /subjects/s", None, 404, error(40401, "Subject 's' not found.")),
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":1}'),
        ("POST /subjects/t/versions", schema('"int"'), 200, '{"id":2}'),
        ("DELETE /subjects/s?permanent=true", None, 404, error(40405, not_soft)),
        ("DELETE /subjects/s", None, 200, "[1]"),
        ("DELETE /subjects/s", None, 404, error(40404, soft)),
        ("GET /subjects", None, 200, '["t"]'),
        ("GET /subjects?deleted=true", None, 200, '["s","t"]'),
        ("GET /subjects?deletedOnly=true", None, 200, '["s"]'),
        ("GET /subjects?deleted=TRUE&deletedOnly=true", None, 200, '["s"]'),
        ("GET /subjects/s/versions", None, 404, error(40401, "Subject 's' not found.")),
        ("GET /subjects/s/versions?deleted=true", None, 200, "[1]"),
        ("GET /subjects/s/versions?deletedOnly=true", None, 200, "[1]"),
        ("GET /subjects/s/versions/1", None, 404, error(40401, "Subject 's' not found.")),
        (
            "GET /subjects/s/versions/1?deleted=true",
            None,
            200,
            f'{{"subject":"s","version":1,"id":1,"schema":{ESCAPED}}}',
        ),
        ("GET /schemas/ids/1", None, 200, f'{{"schema":{ESCAPED}}}'),
        ("GET /schemas/ids/1/subjects", None, 200, "[]"),
        ("GET /schemas/ids/1/subjects?deleted=true", None, 200, '["s"]'),
        ("DELETE /subjects/s?permanent=true", None, 200, "[1]"),
        ("GET /schemas/ids/1", None, 404, error(40403, "Schema 1 not found")),
        ("GET /subjects?deleted=true", None, 200, '["t"]'),
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":3}'),
    )


def test_soft_and_permanent_deletion_of_a_version(api: World) -> None:
    soft = "Subject 's' Version 1 was soft deleted.Set permanent=true to delete permanently"
    not_soft = "Subject 's' Version 1 was not deleted first before being permanently deleted"
    play(
        api,
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":1}'),
        ("POST /subjects/s/versions", schema(USER_2), 200, '{"id":2}'),
        ("DELETE /subjects/s/versions/1?permanent=true", None, 404, error(40407, not_soft)),
        ("DELETE /subjects/s/versions/1", None, 200, "1"),
        ("DELETE /subjects/s/versions/1", None, 404, error(40406, soft)),
        ("GET /subjects/s/versions", None, 200, "[2]"),
        ("GET /subjects/s/versions?deleted=true", None, 200, "[1,2]"),
        ("GET /subjects/s/versions?deletedOnly=true", None, 200, "[1]"),
        ("GET /subjects/s/versions/1", None, 404, error(40402, "Version 1 not found.")),
        ("DELETE /subjects/s/versions/1?permanent=true", None, 200, "1"),
        ("DELETE /subjects/s/versions/1", None, 404, error(40402, "Version 1 not found.")),
    )


def test_look_up(api: World) -> None:
    play(
        api,
        ("POST /subjects/s", schema(USER), 404, error(40401, "Subject 's' not found.")),
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":1}'),
        ("POST /subjects/s", schema(USER_2), 404, error(40403, "Schema not found")),
        ("POST /subjects/s", schema(""), 404, error(40403, "Schema not found")),
        (
            "POST /subjects/s",
            schema(json.dumps(USER, indent=1)),
            200,
            f'{{"subject":"s","version":1,"id":1,"schema":{ESCAPED}}}',
        ),
        ("DELETE /subjects/s/versions/1", None, 200, "1"),
        ("POST /subjects/s", schema(USER), 404, error(40401, "Subject 's' not found.")),
        (
            "POST /subjects/s?deleted=true",
            schema(USER),
            200,
            f'{{"subject":"s","version":1,"id":1,"schema":{ESCAPED}}}',
        ),
    )


def test_look_up_tries_the_normalized_schema_too(api: World) -> None:
    loose = {"type": "record", "name": "R", "namespace": "n", "fields": [], "zeta": 1, "alpha": 2}
    tight = api.post("/subjects/s/versions?normalize=true", schema(loose))
    assert tight.body == {"id": 1}
    stored = api.get("/subjects/s/versions/1").body["schema"]
    assert stored.index('"alpha"') < stored.index('"zeta"')
    assert api.post("/subjects/s", schema(loose)).body["schema"] == stored
    assert api.post("/subjects/s/versions", schema(loose)).body == {"id": 2}
    assert api.put("/config/t", {"normalize": True}).text == '{"normalize":true}'
    assert api.post("/subjects/t/versions", schema(loose)).body == {"id": 1}


def test_schemas_by_id(api: World) -> None:
    play(
        api,
        ("GET /schemas/ids/1", None, 404, error(40403, "Schema 1 not found")),
        ("GET /schemas/ids/1/schema", None, 404, error(40403, "Schema 1 not found")),
        ("GET /schemas/ids/1/subjects", None, 404, error(40403, "Schema not found")),
        ("GET /schemas/ids/1/versions", None, 404, error(40403, "Schema not found")),
        ("GET /schemas/ids/one", None, 404, error(404, "HTTP 404 Not Found")),
        ("GET /schemas/ids/99999999999", None, 404, error(404, "HTTP 404 Not Found")),
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":1}'),
        ("POST /subjects/t/versions", schema(USER), 200, '{"id":1}'),
        ("POST /subjects/t/versions", schema(USER_2), 200, '{"id":2}'),
        ("GET /schemas/ids/1", None, 200, f'{{"schema":{ESCAPED}}}'),
        ("GET /schemas/ids/1?subject=s", None, 200, f'{{"schema":{ESCAPED}}}'),
        ("GET /schemas/ids/1?fetchMaxId=true", None, 200, f'{{"schema":{ESCAPED},"maxId":2}}'),
        ("GET /schemas/ids/1/schema", None, 200, USER_TEXT),
        ("GET /schemas/ids/1/subjects", None, 200, '["s","t"]'),
        ("GET /schemas/ids/1/versions", None, 200, '[{"subject":"s","version":1},{"subject":"t","version":1}]'),
        ("GET /schemas/types", None, 200, '["JSON","PROTOBUF","AVRO"]'),
    )


def test_lists_of_schemas(api: World) -> None:
    api.register("orders-key", '"string"')
    api.register("orders-value", USER)
    api.register("orders-value", USER_2)
    api.register("users", '"int"')
    api.delete("/subjects/users")

    def found(query: str) -> list[tuple[str, int]]:
        return [(each["subject"], each["version"]) for each in api.get(f"/schemas?{query}").body]

    values = [("orders-value", 1), ("orders-value", 2)]
    assert found("") == [("orders-key", 1), *values]
    assert found("subjectPrefix=:*:") == [("orders-key", 1), *values]
    assert found("subjectPrefix=orders-v") == values
    assert found("subjectPrefix=:.:orders-v") == values
    assert found("subjectPrefix=:.other:orders-v") == []
    assert found("latestOnly=true") == [("orders-key", 1), ("orders-value", 2)]
    assert found("deleted=true&subjectPrefix=u") == [("users", 1)]
    assert found("offset=1&limit=1") == [("orders-value", 1)]
    assert found("offset=9") == []
    text = api.get("/schemas?limit=1").text
    assert text == '[{"subject":"orders-key","version":1,"id":1,"schema":"\\"string\\""}]'


def test_a_page_of_schemas_is_whole_or_an_error(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for subject in ("a", "b", "c"):
        api.register(subject, '"string"')
    monkeypatch.setattr("headrace_registry.api.handlers.PAGE_CHARACTERS_MAX", 2 * len('"string"'))
    refused = api.get("/schemas")
    assert (refused.status, refused.body["error_code"]) == (422, 422)
    assert "ask with limit=2 and a greater offset" in refused.body["message"]
    pages = [api.get(f"/schemas?limit=2&offset={offset}").body for offset in (0, 2)]
    assert [[each["subject"] for each in page] for page in pages] == [["a", "b"], ["c"]]
    monkeypatch.setattr("headrace_registry.api.handlers.PAGE_CHARACTERS_MAX", 1)
    assert [each["subject"] for each in api.get("/schemas?limit=1&offset=1").body] == ["b"]


def test_lists_of_subjects(api: World) -> None:
    for subject in ("b", "a", "ab", "c"):
        api.register(subject, '"string"')
    assert api.get("/subjects?subjectPrefix=a").body == ["a", "ab"]
    assert api.get("/subjects?subjectPrefix=:*:a").body == ["a", "ab"]
    assert api.get("/subjects?subjectPrefix=:.x:").body == []
    assert api.get("/subjects?offset=1&limit=2").body == ["ab", "b"]
    assert api.get("/subjects?offset=-2").body == ["a", "ab", "b", "c"]
    assert api.get("/subjects?limit=-1").body == ["a", "ab", "b", "c"]
    assert api.get("/subjects?limit=x").error == (404, 404, "HTTP 404 Not Found")


def test_references(api: World) -> None:
    outer = record("Outer", ("user", "User"))
    references = [{"name": "User", "subject": "user", "version": 1}]
    missing = [{"name": "User", "subject": "user", "version": 2}]
    shown = "[{name='User', subject='user', version=2}]"
    text = json.dumps(outer)
    play(
        api,
        ("POST /subjects/user/versions", schema(USER), 200, '{"id":1}'),
        (
            "POST /subjects/outer/versions",
            schema(outer, references=missing),
            422,
            error(
                42201,
                f"Invalid schema {{subject=outer,version=0,id=-1,schemaType=AVRO,references={shown},metadata=null,"
                f"ruleSet=null,schema={text}}} with refs {shown} of type AVRO, details: No schema reference found for "
                'subject "user" and version 2',
            ),
        ),
        ("POST /subjects/outer/versions", schema(outer, references=references), 200, '{"id":2}'),
        ("GET /subjects/user/versions/1/referencedby", None, 200, "[2]"),
        ("GET /subjects/user/versions/latest/referencedby", None, 200, "[2]"),
        ("GET /subjects/outer/versions/1/referencedby", None, 200, "[]"),
        ("GET /subjects/x/versions/1/referencedby", None, 404, error(40401, "Subject 'x' not found.")),
        (
            "GET /schemas/ids/2",
            None,
            200,
            '{"schema":'
            + json.dumps(json.dumps(outer, separators=(",", ":")))
            + ',"references":[{"name":"User","subject":"user","version":1}]}',
        ),
        (
            "GET /subjects/outer/versions/1",
            None,
            200,
            '{"subject":"outer","version":1,"id":2,"references":[{"name":"User","subject":"user","version":1}],"schema":'
            + json.dumps(json.dumps(outer, separators=(",", ":")))
            + "}",
        ),
        (
            "DELETE /subjects/user",
            None,
            422,
            error(
                42206,
                "One or more references exist to the schema {magic=1,keytype=SCHEMA,subject=user,version=1}.",
            ),
        ),
    )
    resolved = api.get("/schemas/ids/2?format=resolved").body["schema"]
    assert json.loads(resolved)["fields"][0]["type"]["name"] == "User"
    assert api.get("/schemas/ids/2/schema?format=resolved").text == resolved
    assert api.get("/subjects/outer/versions/1?format=resolved").body["schema"] == resolved
    assert api.get("/subjects/outer/versions/1?format=unknown").body["schema"] != resolved


def test_other_types_are_named(api: World) -> None:
    play(
        api,
        ("POST /subjects/j/versions", schema(PERSON, schemaType="JSON"), 200, '{"id":1}'),
        ("GET /schemas/ids/1", None, 200, f'{{"schemaType":"JSON","schema":{json.dumps(PERSON)}}}'),
        (
            "GET /subjects/j/versions/1",
            None,
            200,
            f'{{"subject":"j","version":1,"id":1,"schemaType":"JSON","schema":{json.dumps(PERSON)}}}',
        ),
        ("GET /subjects/j/versions/1/schema", None, 200, PERSON),
        ("POST /subjects/j/versions", schema("x", schemaType="XML"), 422, error(42201, "Invalid schema type XML")),
        ("POST /subjects/j/versions", schema("x", schemaType="avro"), 422, error(42201, "Invalid schema type avro")),
    )
    proto = 'syntax = "proto3";\n\nmessage M {\n  int32 a = 1;\n}\n'
    assert api.register("p", proto, schemaType="PROTOBUF") == 2
    assert api.get("/subjects/p/versions/1").body["schemaType"] == "PROTOBUF"
    serialized = api.get("/schemas/ids/2?format=serialized").body["schema"]
    assert api.register("p", serialized, schemaType="PROTOBUF") == 2


def test_a_change_of_the_type_is_incompatible(api: World) -> None:
    api.register("s", '"string"')
    reply = api.post("/subjects/s/versions", schema(PERSON, schemaType="JSON"))
    assert reply.error == (
        409,
        409,
        'Schema being registered is incompatible with an earlier schema for subject "s", details: [Incompatible '
        "because of different schema type, {validateFields: 'false', compatibility: 'BACKWARD'}]",
    )


def test_compatibility(api: World) -> None:
    reasons = (
        "\"{errorType:'TYPE_MISMATCH', description:'The type (path '/') of a field in the new schema does not match "
        "with the old schema', additionalInfo:'reader type: INT not compatible with writer type: STRING'}\","
        '"{oldSchemaVersion: 1}","{oldSchema: \'\\"string\\"\'}",'
        "\"{validateFields: 'false', compatibility: 'BACKWARD'}\""
    )
    invalid = (
        "Invalid schema {subject=s,version=0,id=-1,schemaType=AVRO,references=[],metadata=null,ruleSet=null,schema={} "
        "with refs [] of type AVRO, details: "
    )
    path = "POST /compatibility/subjects/s/versions"
    play(
        api,
        (f"{path}/latest", schema('"int"'), 200, '{"is_compatible":true}'),
        (f"{path}/1", schema('"int"'), 404, error(40402, "Version 1 not found.")),
        (path, schema('"int"'), 200, '{"is_compatible":true}'),
        ("POST /subjects/s/versions", schema('"string"'), 200, '{"id":1}'),
        (f"{path}/latest", schema('"int"'), 200, '{"is_compatible":false}'),
        (f"{path}/1?verbose=true", schema('"int"'), 200, f'{{"is_compatible":false,"messages":[{reasons}]}}'),
        (f"{path}?verbose=true", schema('"int"'), 200, f'{{"is_compatible":false,"messages":[{reasons}]}}'),
        (f"{path}?verbose=true", schema('"bytes"'), 200, '{"is_compatible":true,"messages":[]}'),
        (f"{path}/latest", schema(""), 422, error(42201, "Empty schema")),
    )
    reply = api.post("/compatibility/subjects/s/versions/latest", schema("{"))
    assert reply.error[:2] == (422, 42201)
    assert reply.error[2].startswith(invalid)
    reply = api.post("/compatibility/subjects/s/versions/latest?verbose=true", schema("{"))
    assert (reply.status, reply.body["is_compatible"]) == (200, False)
    assert reply.body["messages"][0].startswith(invalid)


def test_settings(api: World) -> None:
    levels = (
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive"
    )
    unset = "Subject 's' does not have subject-level compatibility configured"
    play(
        api,
        ("GET /config/s", None, 404, error(40408, unset)),
        ("GET /config/s?defaultToGlobal=true", None, 200, '{"compatibilityLevel":"BACKWARD"}'),
        ("DELETE /config/s", None, 404, error(40401, "Subject 's' not found.")),
        ("PUT /config", {"compatibility": "FULL"}, 200, '{"compatibility":"FULL"}'),
        ("PUT /config/s", {"compatibility": "sideways"}, 422, error(42203, levels)),
        ("PUT /config/s", {"compatibility": "full_transitive"}, 200, '{"compatibility":"full_transitive"}'),
        (
            "PUT /config/s",
            {"normalize": True, "validateFields": False},
            200,
            '{"normalize":true,"validateFields":false}',
        ),
        (
            "GET /config/s",
            None,
            200,
            '{"normalize":true,"validateFields":false,"compatibilityLevel":"FULL_TRANSITIVE"}',
        ),
        ("GET /config", None, 200, '{"compatibilityLevel":"FULL"}'),
        (
            "DELETE /config/s",
            None,
            200,
            '{"normalize":true,"validateFields":false,"compatibilityLevel":"FULL_TRANSITIVE"}',
        ),
        ("GET /config/s?defaultToGlobal=true", None, 200, '{"compatibilityLevel":"FULL"}'),
        ("DELETE /config", None, 200, '{"compatibilityLevel":"FULL"}'),
        ("GET /config", None, 200, '{"compatibilityLevel":"BACKWARD"}'),
    )


def test_modes(api: World) -> None:
    unset = "Subject 's' does not have subject-level mode configured"
    invalid = "Invalid mode. Valid values are READWRITE, READONLY, and IMPORT."
    play(
        api,
        ("GET /mode", None, 200, '{"mode":"READWRITE"}'),
        ("GET /mode/s", None, 404, error(40409, unset)),
        ("GET /mode/s?defaultToGlobal=true", None, 200, '{"mode":"READWRITE"}'),
        ("DELETE /mode/s", None, 404, error(40401, "Subject 's' not found.")),
        ("PUT /mode", {"mode": "SLOW"}, 422, error(42204, invalid)),
        ("PUT /mode", {}, 422, error(42204, invalid)),
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":1}'),
        ("PUT /mode/s", {"mode": "readonly"}, 200, '{"mode":"readonly"}'),
        ("GET /mode/s", None, 200, '{"mode":"READONLY"}'),
        (
            "POST /subjects/s/versions",
            schema(USER_2),
            422,
            error(42205, "Subject s is in read-only mode"),
        ),
        ("POST /subjects/s/versions", schema(USER), 200, '{"id":1}'),
        ("DELETE /mode/s", None, 200, '{"mode":"READONLY"}'),
        ("PUT /mode", {"mode": "IMPORT"}, 422, error(42205, "Cannot import since found existing subjects")),
        ("PUT /mode?force=true", {"mode": "IMPORT"}, 200, '{"mode":"IMPORT"}'),
        ("POST /subjects/t/versions", schema(USER_2, version=7, id=70), 200, '{"id":70}'),
        (
            "POST /subjects/t/versions",
            schema('"int"', version=8, id=70),
            422,
            error(42205, "Overwrite new schema with id 70 is not permitted."),
        ),
        ("GET /subjects/t/versions", None, 200, "[7]"),
        ("DELETE /mode", None, 200, '{"mode":"IMPORT"}'),
        (
            "POST /subjects/t/versions",
            schema('"int"', version=8, id=71),
            422,
            error(42205, "Subject t is not in import mode"),
        ),
    )


def test_the_registrys_settings_are_the_defaults() -> None:
    with world(compatibility_level="none", mode_mutability=False) as api:
        play(
            api,
            ("GET /config", None, 200, '{"compatibilityLevel":"NONE"}'),
            ("PUT /mode", {"mode": "READONLY"}, 422, error(42205, "Mode changes are not allowed")),
            ("POST /subjects/s/versions", schema('"int"'), 200, '{"id":1}'),
            ("POST /subjects/s/versions", schema('"string"'), 200, '{"id":2}'),
        )


def test_names_that_need_escapes(api: World) -> None:
    for path, name in (
        ("a%2Fb", "a/b"),
        ("a%20b%2Bc%25", "a b+c%"),
        ("%C3%BC%F0%9F%98%80", "ü😀"),
        ("%22%5C%7B%7D", '"\\{}'),
    ):
        assert api.register(path, '"string"') == 1
        assert api.get(f"/subjects/{path}/versions/1").body["subject"] == name
        assert api.put(f"/config/{path}", {"compatibility": "FULL"}).status == 200
        assert name in api.get("/subjects").body
        assert api.delete(f"/subjects/{path}").body == [1]


def test_the_default_context_may_be_written_out(api: World) -> None:
    api.register(":.:s", '"string"')
    play(
        api,
        ("GET /contexts", None, 200, '["."]'),
        ("GET /subjects", None, 200, '["s"]'),
        ("GET /contexts/:.:/subjects", None, 200, '["s"]'),
        ("GET /contexts/./subjects/s/versions", None, 200, "[1]"),
        ("GET /config/:.:", None, 200, '{"compatibilityLevel":"BACKWARD"}'),
    )
    other = " is not a valid. This registry has only the default context."
    assert api.get("/contexts/.x/subjects").error == (422, 42208, f"The specified subject '.x'{other}")
    assert api.get("/subjects/:.x:s/versions").error == (422, 42208, f"The specified subject ':.x:s'{other}")
    assert api.put("/mode/:.x:", {"mode": "IMPORT"}).error[:2] == (422, 42208)


@pytest.mark.parametrize(("path", "name"), [("__GLOBAL", "__GLOBAL"), ("__EMPTY", "__EMPTY"), ("a%0Ab", "a\nb")])
def test_names_that_no_subject_may_have(api: World, path: str, name: str) -> None:
    expected = (422, 42208, f"The specified subject '{name}' is not a valid.")
    assert api.post(f"/subjects/{path}/versions", schema('"int"')).error == expected
    assert api.put(f"/config/{path}", {"compatibility": "FULL"}).error == expected
    assert api.put(f"/mode/{path}", {"mode": "READONLY"}).error == expected
    assert api.get("/subjects").body == []


def test_the_registry_itself(api: World) -> None:
    assert api.get("/").text == "{}"
    assert api.call("HEAD", "/subjects").status == 200
    assert api.get("/v1/metadata/version").body["commitId"] == ""


def test_what_is_not_served_is_refused(api: World) -> None:
    metadata = {"properties": {"owner": "me"}}
    reply = api.post("/subjects/s/versions", schema('"int"', metadata=metadata))
    assert reply.error[:2] == (422, 42201)
    assert '"metadata"' in reply.error[2]
    reply = api.post("/subjects/s/versions", schema('"int"', ruleSet={"domainRules": [{"name": "r"}]}))
    assert reply.error[:2] == (422, 42210)
    assert api.post("/subjects/s/versions", schema('"int"', metadata=None, ruleSet=None)).body == {"id": 1}
    reply = api.put("/config/s", {"compatibilityGroup": "major"})
    assert reply.status == 422
    assert '"compatibilityGroup"' in reply.error[2]


def test_a_negative_id_gives_a_known_schema_no_second_id(api: World) -> None:
    assert api.register("s", '"int"') == 1
    assert api.register("s", '"int"', id=-2) == 1
    assert api.register("t", '"int"', id=-2) == 1
    assert api.get("/subjects/s/versions").body == [1]
