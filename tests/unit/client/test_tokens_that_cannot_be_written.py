"""`headrace tokens create` on a full disk: no token is left whose secret nobody has, and no half-written file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import DelegationToken
from headrace_core.errors import HeadraceError, InvalidArgumentError, RequestTimedOutError
from headrace_tools.cli import tokens
from headrace_tools.cli.output import OutputFormat


class FakeAdmin:
    """An Admin with one delegation token."""

    def __init__(self, expire_error: HeadraceError | None = None) -> None:
        self.made = self.removed = 0
        self._expire_error = expire_error

    def create_delegation_token(self, *_: Any, **__: Any) -> Any:
        self.made += 1
        return made_token()

    def expire_delegation_token(self, hmac: bytes) -> int:
        if self._expire_error is not None:
            raise self._expire_error
        assert hmac == b"secret"
        self.removed += 1
        return 0


def made_token() -> Any:
    owner = "User:alice"
    fields = dict.fromkeys(("issued_at_ms", "expires_at_ms", "max_lifetime_at_ms"), 1700000000000)
    return DelegationToken(token_id="an-id", owner=owner, requester=owner, renewers=(), hmac=b"secret", **fields)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    made = FakeAdmin()
    monkeypatch.setattr(tokens, "admin", lambda _: contextlib.nullcontext(made))
    return made


def full_after(writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full after ``writes`` writes."""
    left = writes
    pwrite = os.pwrite

    def write(descriptor: int, data: bytes, at: int) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= 1
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", write)


def create(out: Path | None) -> None:
    tokens.create(out, None, None, None, "127.0.0.1:1", OutputFormat.TEXT)


def test_a_file_without_room_makes_no_token(client: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_after(0, monkeypatch)
    with pytest.raises(InvalidArgumentError, match=r"token.properties: No space left on device; no token was created"):
        create(tmp_path / "token.properties")
    assert (client.made, list(tmp_path.iterdir())) == (0, [])


def _raise(error: BaseException) -> Callable[..., Any]:
    def failing(*_: Any) -> Any:
        raise error

    return failing


def test_a_token_whose_file_cannot_be_written_is_removed_again(
    client: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_after(1, monkeypatch)
    with pytest.raises(InvalidArgumentError, match="No space left on device; token an-id was removed again"):
        create(tmp_path / "token.properties")
    assert (client.made, client.removed, list(tmp_path.iterdir())) == (1, 1, [])


def test_a_token_whose_file_cannot_be_flushed_is_removed_again(
    client: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([None, OSError(errno.EIO, "Input/output error")])

    def sync(_: int) -> None:
        if (error := next(calls)) is not None:
            raise error

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(InvalidArgumentError, match="Input/output error; token an-id was removed again"):
        create(tmp_path / "token.properties")
    assert (client.removed, list(tmp_path.iterdir())) == (1, [])


def test_a_token_that_cannot_be_removed_is_named_with_the_cure(
    client: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client._expire_error = RequestTimedOutError("no answer")
    full_after(1, monkeypatch)
    with pytest.raises(InvalidArgumentError, match=r"its secret is lost.*run headrace tokens expire an-id"):
        create(tmp_path / "token.properties")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InvalidArgumentError),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), BrokenPipeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_secret_that_cannot_be_printed_removes_its_token(
    client: FakeAdmin, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException]
) -> None:
    monkeypatch.setattr(tokens, "print_table", _raise(error))
    with pytest.raises(raised):
        create(None)
    assert (client.made, client.removed) == (1, 1)


def test_a_refused_token_leaves_no_file(client: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "create_delegation_token", lambda *_, **__: _raise(RequestTimedOutError("x"))())
    with pytest.raises(RequestTimedOutError):
        create(tmp_path / "token.properties")
    assert list(tmp_path.iterdir()) == []


def test_the_file_has_the_secret_alone_and_its_owner_may_read_it(client: FakeAdmin, tmp_path: Path) -> None:
    out = tmp_path / "token.properties"
    create(out)
    assert out.read_text() == f"sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={made_token().jaas_config}\n"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert client.removed == 0
