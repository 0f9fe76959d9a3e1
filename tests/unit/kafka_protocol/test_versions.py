"""ApiVersions: what a broker advertises."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers.table import FAST, HANDLERS
from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_kafka.wire.schema import Message, request_body, response_body

API = Api.API_VERSIONS
EVERY = range(VERSIONS[API].low, VERSIONS[API].high + 1)


def answer_of(version: int, name: str = "apache-kafka-java", software_version: str = "4.3.0") -> Message:
    state = MetadataState()
    state.advance(MetadataImage(next_offset=42), MetadataDelta(0, 42))
    client = Client(host="10.0.0.1", listener="PLAINTEXT")
    call = Call(client, API, version, "", Cluster(state), cast("Any", None), cast("Any", None))
    fields = {"client_software_name": name, "client_software_version": software_version} if version >= 3 else {}
    request = request_body(API, version).read(bytes(request_body(API, version).write(fields)))
    answer = asyncio.run(cast("Any", HANDLERS[API](call, request)))
    body = response_body(API, version)
    return body.read(bytes(body.write(answer)))


@pytest.mark.parametrize("version", EVERY)
def test_exactly_the_types_with_a_handler_are_advertised(version: int) -> None:
    rows = {Api(each.api_key): (each.min_version, each.max_version) for each in answer_of(version).api_keys}
    assert rows.pop(Api.PRODUCE) == (0, VERSIONS[Api.PRODUCE].high), "KAFKA-18659: librdkafka needs 0 to compress"
    assert rows == {api: VERSIONS[api][:2] for api in {*HANDLERS, *FAST} - {Api.PRODUCE}}


def test_the_features_are_those_of_kafka_4_3() -> None:
    answer = answer_of(4)
    assert {each.name: each.max_version_level for each in answer.finalized_features} == {
        "group.version": 1,
        "metadata.version": 30,
        "transaction.version": 2,
    }
    assert answer.finalized_features_epoch == 42
    assert {each.name: (each.min_version, each.max_version) for each in answer.supported_features} == {
        "group.version": (0, 1),
        "metadata.version": (7, 30),
        "transaction.version": (0, 2),
    }


def test_older_clients_get_no_level_zero() -> None:
    assert min(each.min_version for each in answer_of(3).supported_features) == 1


@pytest.mark.parametrize(("name", "software_version"), [("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1\n")])
def test_an_illegal_name_of_the_clients_software_is_refused(name: str, software_version: str) -> None:
    assert answer_of(3, name, software_version).error_code == 42
