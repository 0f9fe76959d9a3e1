"""The judge of groups with a killed member (tests/integration/kafka_protocol/group_of_three.py) finds each kind of
fault."""

from __future__ import annotations

import pytest

from tests.integration.kafka_protocol.group_of_three import Commit, GroupRun, Read, Sent, judge_group

SENT = [Sent(0, offset, "k0", f"v{offset}") for offset in range(4)]


def read(at_ns: int, offset: int) -> Read:
    return Read(at_ns, 0, offset, "k0", f"v{offset}", str(offset))


#: The first member reads three records, commits two of them and is killed; the second one reads on from the commit.
READS = [read(1, 0), read(2, 1), read(4, 2), read(5, 2), read(6, 3)]
COMMITS = [Commit(3, 0, 2), Commit(7, 0, 4)]
RIGHT = GroupRun(SENT, READS, COMMITS, {0: 4})


def test_records_after_the_last_commit_may_be_read_twice() -> None:
    judge_group(RIGHT)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(RIGHT._replace(reads=READS[:-1]), id="lost"),
        pytest.param(RIGHT._replace(reads=[*READS[:2], *READS[4:]]), id="skipped"),
        pytest.param(RIGHT._replace(reads=[*READS, read(8, 3)]), id="read again after its commit"),
        pytest.param(RIGHT._replace(reads=[read(each, 3 - each) for each in range(4)]), id="out of order"),
        pytest.param(RIGHT._replace(reads=[*READS[:-1], READS[-1]._replace(value="v9")]), id="another value"),
        pytest.param(RIGHT._replace(reads=[*READS[:-1], READS[-1]._replace(header="-")]), id="without its header"),
        pytest.param(RIGHT._replace(ends={0: 3}), id="not committed"),
        pytest.param(RIGHT._replace(sent=[*SENT, Sent(0, 4, "k0", "v3")]), id="written twice"),
        pytest.param(
            RIGHT._replace(sent=[SENT[1]._replace(offset=0), SENT[0]._replace(offset=1), *SENT[2:]]), id="order"
        ),
    ],
)
def test_every_other_fault_is_found(wrong: GroupRun) -> None:
    with pytest.raises(AssertionError):
        judge_group(wrong)
