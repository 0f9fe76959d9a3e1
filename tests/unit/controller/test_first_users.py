"""The first users: written by format, read by a controller, put into the log of a new cluster only (KIP-900)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_controller.formatting import FIRST_USERS, read_users, write_voters
from headrace_core.errors import CorruptLogError
from headrace_core.log.files import RealFileSystem
from headrace_core.metadata.records import ScramCredentialRecord
from headrace_core.node.first_voters import InitialVoter
from headrace_core.security.sasl.scram import SHA_256, ScramCredential, has_password
from headrace_tools.cli.app import run

ADMIN = ScramCredentialRecord("admin", 2, b"salt", b"stored", b"server", 4_096)
VOTERS = (InitialVoter(node_id=1, address="127.0.0.1:19093", directory_id=b"d" * 16),)


def test_users_that_format_writes_are_read_again(tmp_path: Path) -> None:
    fs, root = RealFileSystem(), str(tmp_path)
    assert read_users(fs, root) == ()
    write_voters(fs, root, VOTERS, users=(ADMIN,))
    assert read_users(fs, root) == (ADMIN,)
    write_voters(fs, root, VOTERS)  # an interrupted format is repeated without users
    assert read_users(fs, root) == ()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    fs, root = RealFileSystem(), str(tmp_path)
    write_voters(fs, root, VOTERS, users=(ADMIN,))
    path = f"{root}/{FIRST_USERS}"
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(CorruptLogError, match=FIRST_USERS):
        read_users(fs, root)


def test_format_adds_a_user_and_does_not_repeat_a_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_text("pl4nted\n")
    root = str(tmp_path / "c")
    base = ["format", "--log-dirs", root, "--node-id", "1", "--standalone", "--address", "127.0.0.1:19093"]
    for wrong in ("SCRAM-SHA-1=[name=a,password=pl4nted]", "SCRAM-SHA-256=[name=a,password=pl4nted,iterations=1]"):
        assert run([*base, "--add-scram", wrong]) != 0
    assert run([*base, "--add-scram", f"SCRAM-SHA-256=[name=ops,password-file={tmp_path / 'secret'}]"]) == 0
    assert "pl4nted" not in "".join(capsys.readouterr())
    (made,) = read_users(RealFileSystem(), root)
    assert (made.user, made.mechanism) == ("ops", 1)
    credential = ScramCredential(made.salt, made.stored_key, made.server_key, made.iterations)
    assert has_password(SHA_256, credential, "pl4nted")
