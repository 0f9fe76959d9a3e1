"""`headrace certs`: what it makes, what it shows, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_core.security.certificates import node_identity
from headrace_core.security.tls import TlsSettings, load
from headrace_tools.certs.authority import read_file
from headrace_tools.cli.app import run


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(["certs", *words, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run(["certs", "init", "--dir", str(tmp_path / "ca")]) == 0
    capsys.readouterr()
    return tmp_path / "ca"


def test_certificates_of_nodes_and_users(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--dir", str(directory)]
    node = shown(capsys, "issue", "broker", "1", *own, "--host", "b1.example", "--host", "10.0.0.5", "--days", "30")
    assert (node["role"], node["id"], node["names"], node["days_left"]) == ("broker", 1, ["b1.example", "10.0.0.5"], 29)
    every = shown(capsys, "issue", "coordinator", *own, "--host", "localhost")
    assert (every["role"], every["id"], every["file"]) == ("coordinator", None, str(directory / "coordinator.pem"))
    user = shown(capsys, "issue", "user", "alice", *own)
    assert (user["role"], user["subject"], user["names"]) == (None, "CN=alice", [])
    for path in directory.iterdir():
        assert path.stat().st_mode & 0o777 == (0o644 if path.name == "ca.pem" else 0o600)
    keystore = TlsSettings(keystore_location=str(directory / "broker-1.pem"), ca_location=str(directory / "ca.pem"))
    assert load(keystore).chain is not None
    assert str(node_identity((directory / "broker-1.pem").read_bytes())) == "headrace:broker:1"
    rows = shown(capsys, "show", *(str(directory / name) for name in ("ca.pem", "broker-1.pem", "alice.pem")))
    assert [row["for"] for row in rows] == ["authority", "broker 1", "user CN=alice"]
    assert run(["certs", "show", str(directory / "broker-1.pem")]) == 0
    text = capsys.readouterr().out
    assert "b1.example,10.0.0.5" in text
    assert "BEGIN" not in text


def test_renewal_keeps_names_and_lifetime_and_changes_the_key(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--dir", str(directory)]
    shown(capsys, "issue", "broker", "1", *own, "--host", "b1.example", "--days", "30")
    path = directory / "broker-1.pem"
    before, certificate = path.read_bytes(), read_file(path)[0]
    (renewed,) = shown(capsys, "renew", str(path), *own)
    assert (renewed["role"], renewed["id"], renewed["names"]) == ("broker", 1, ["b1.example"])
    after = read_file(path)[0]
    assert after.serial != certificate.serial
    assert after.not_after - after.not_before == certificate.not_after - certificate.not_before
    assert path.read_bytes().split(b"CERTIFICATE")[0] != before.split(b"CERTIFICATE")[0]


def test_a_file_that_cannot_be_renewed_does_not_hide_those_that_are(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--dir", str(directory)]
    files = [shown(capsys, "issue", "broker", each, *own, "--host", "b.example")["file"] for each in ("1", "2")]
    before = [Path(each).read_bytes() for each in files]
    assert run(["certs", "renew", files[0], "nowhere.pem", files[1], *own]) == 1
    printed = capsys.readouterr()
    assert [line.split(",")[0] for line in printed.out.splitlines()] == ["renewed broker 1", "renewed broker 2"]
    assert "cannot read nowhere.pem" in printed.err
    assert all(Path(each).read_bytes() != former for each, former in zip(files, before, strict=True))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["issue", "broker", "1", "--host", "x"], 1, "broker-1.pem already exists; pass --force"),
        (["init"], 1, "already exists; pass --force"),
        (["issue", "broker", "2"], 2, "a node's certificate needs the host names"),
        (["issue", "user", "bob", "--host", "x"], 2, "a user's certificate has no host"),
        (["issue", "user", "../bob"], 1, "user name '../bob'"),
        (["issue", "user", ""], 1, "must have 1 to 63"),
        (["issue", "broker", "x", "--host", "y"], 1, "'x' is not the id of a broker"),
        (["issue", "wizard", "1", "--host", "y"], 1, "'wizard' is neither a role nor user"),
        (["issue", "user", "bob", "--days", "0"], 1, "must be between 1 and"),
        (["issue", "broker", "3", "--host", "ü.example"], 1, "give a host name or an IP address"),
        (["renew", "ca.pem"], 1, "is the certificate of an authority"),
        (["renew", "broker-1.pem", "--days", "0"], 1, "must be between 1 and"),
        (["renew", "nowhere.pem"], 1, "cannot read"),
    ],
)
def test_what_is_refused(
    directory: Path,
    words: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(directory)
    shown(capsys, "issue", "broker", "1", "--dir", ".", "--host", "x")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert run(["certs", *words, "--dir", "."]) == code
    assert said in " ".join(capsys.readouterr().err.split())
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_force_replaces(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--dir", str(directory), "--host", "x"]
    first = shown(capsys, "issue", "broker", "1", *own)
    assert shown(capsys, "issue", "broker", "1", *own, "--force")["serial"] != first["serial"]


def test_without_an_authority_the_error_names_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certs", "issue", "user", "bob", "--dir", str(tmp_path)]) == 1
    assert "make one with `headrace certs init" in capsys.readouterr().err
