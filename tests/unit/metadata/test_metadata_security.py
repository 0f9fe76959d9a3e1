"""The part of the image that concerns security: its records, and the level of metadata.version that they need."""

from __future__ import annotations

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.metadata import EMPTY_IMAGE, ClusterRecord, MetadataImage, MetadataRecord
from headrace_core.metadata.features import level_needed, what_forbids
from headrace_core.metadata.records import (
    AclRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAclRecord,
    RemoveDelegationTokenRecord,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
)
from headrace_core.metadata.snapshot import image_records

ACL = AclRecord(b"a" * 16, 2, "orders", 3, "User:alice", "*", 3, 3)
CREDENTIAL = ScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4_096)
ALICE = (("user", "alice"),)
ANYBODY = (("client-id", None), ("user", None))
TOKEN = DelegationTokenRecord("t", "User:alice", "User:bob", ("User:carol",), 1, 2, 3)
RECORDS: list[MetadataRecord] = [
    ClusterRecord("c", 3),
    ACL,
    CREDENTIAL,
    ClientQuotaRecord(ALICE, "producer_byte_rate", 1.0),
    ClientQuotaRecord(ALICE, "consumer_byte_rate", 2.0),
    ClientQuotaRecord(ANYBODY, "producer_byte_rate", 3.0),
    TOKEN,
]


def image_of(*more: MetadataRecord) -> MetadataImage:
    return EMPTY_IMAGE.apply([*RECORDS, *more], len(RECORDS) + len(more))


def test_records_make_the_image() -> None:
    security = image_of().security
    assert dict(security.acls) == {ACL.acl_id: ACL}
    assert dict(security.scram) == {("alice", 1): CREDENTIAL}
    assert security.quotas == {
        ALICE: {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0},
        ANYBODY: {"producer_byte_rate": 3.0},
    }
    assert dict(security.tokens) == {"t": TOKEN}


def test_a_snapshot_has_all_of_it() -> None:
    image = image_of()
    records = list(image_records(image))
    assert EMPTY_IMAGE.apply(records, len(records)).security == image.security


def test_entries_are_replaced_and_removed() -> None:
    again = ScramCredentialRecord("alice", 1, b"other", b"stored", b"server", 8_192)
    assert image_of(again).security.scram["alice", 1] == again
    gone = image_of(
        RemoveAclRecord(ACL.acl_id),
        RemoveScramCredentialRecord("alice", 1),
        ClientQuotaRecord(ALICE, "producer_byte_rate"),
        ClientQuotaRecord(ALICE, "consumer_byte_rate"),
        ClientQuotaRecord(ANYBODY, "producer_byte_rate"),
        RemoveDelegationTokenRecord("t"),
    )
    assert not gone.security


@pytest.mark.parametrize(
    "record",
    [
        RemoveAclRecord(b"b" * 16),
        RemoveScramCredentialRecord("alice", 2),
        ClientQuotaRecord(ALICE, "request_percentage"),
        RemoveDelegationTokenRecord("u"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_the_removal_of_what_is_not_there_is_a_damaged_log(record: MetadataRecord) -> None:
    with pytest.raises(CorruptLogError, match="removes an entry that does not exist"):
        image_of(record)


def test_the_part_is_the_same_object_until_it_changes() -> None:
    image = image_of()
    assert image.apply([ClusterRecord("c", 3)], image.next_offset + 1).security is image.security
    assert image.apply([RemoveDelegationTokenRecord("t")], image.next_offset + 1).security is not image.security


def test_its_records_need_level_3() -> None:
    assert {level_needed(record) for record in RECORDS[1:]} == {3}
    assert what_forbids(image_of(), 3) == []
    assert what_forbids(image_of(), 2) == [
        "access control entries exist",
        "users have credentials",
        "clients have quotas",
        "delegation tokens exist",
    ]
