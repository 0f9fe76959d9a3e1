"""Users of SCRAM on a real cluster: made, described, changed and deleted by Admin and by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import (
    Admin,
    LocalCluster,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from headrace.errors import DuplicateResourceError, InvalidArgumentError, ResourceNotFoundError
from headrace_tools.cli.app import run


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, mode="inprocess") as running:
        yield running


def test_users_are_made_described_and_removed(cluster: LocalCluster) -> None:
    both = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("alice", "s3cret", each, iterations=8192) for each in both]
        )
        assert admin.describe_user_scram_credentials(["alice"]) == {
            "alice": [ScramCredentialInfo(each, 8192) for each in both]
        }
        admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", both[0])])
        assert admin.describe_user_scram_credentials()["alice"] == [ScramCredentialInfo(both[1], 8192)]
        with pytest.raises(ResourceNotFoundError, match="SCRAM-SHA-256"):
            admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", both[0])])
        with pytest.raises(DuplicateResourceError):
            admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", both[1])] * 2)
        with pytest.raises(ResourceNotFoundError):
            admin.describe_user_scram_credentials(["stranger"])
        with pytest.raises(InvalidArgumentError, match="iterations") as caught:
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", "hush", both[0], iterations=1)])
        assert "hush" not in str(caught.value)


def test_the_command_line_never_shows_a_password(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("pl4nted\n")
    monkeypatch.setenv("ETL_PASSWORD", "pl4nted")
    servers, output = ["-b", cluster.bootstrap_servers], ""

    def headrace(*arguments: str) -> tuple[int, str]:
        nonlocal output
        code = run(["users", *arguments, *servers])
        printed = capsys.readouterr()
        output += printed.out + printed.err
        return code, printed.out

    assert headrace("create", "etl", "--password-file", str(secret))[0] == 0
    code, listed = headrace("list", "etl", "-o", "json")
    credentials = [{"mechanism": "SCRAM-SHA-512", "iterations": 4096}]
    assert (code, json.loads(listed)) == (0, [{"user": "etl", "credentials": credentials}])
    assert headrace("create", "etl", "--password-env", "ETL_PASSWORD")[0] != 0  # it exists
    assert headrace("alter", "etl", "--password-env", "ETL_PASSWORD", "--iterations", "8192")[0] == 0
    assert headrace("alter", "stranger", "--password-env", "ETL_PASSWORD")[0] != 0
    assert headrace("delete", "etl")[0] == 0
    assert "etl" in output
    assert "pl4nted" not in output
