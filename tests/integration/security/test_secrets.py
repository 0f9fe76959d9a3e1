"""A planted password: it is in no output, log, argument list or file of a run except the file that holds it."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

import pytest

from headrace import Admin, LocalCluster, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.errors import SaslAuthenticationFailedError
from headrace_tools.cli.app import run
from tests.worlds.security import contents_of


def holders(directory: Path, secret: str) -> list[str]:
    """The files below ``directory`` that contain the secret."""
    files = contents_of(directory)
    assert any(each.suffix == ".log" for each in files), "no log file was searched"
    return [str(each.relative_to(directory)) for each, content in files.items() if secret.encode() in content]


def command_lines() -> bytes:
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes()
        except OSError:
            continue  # the process has ended
    assert b"pytest" in found
    return found


def test_a_password_is_nowhere_but_in_its_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "headrace")
    password, root = secrets.token_hex(16), secrets.token_hex(16)
    plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_root="${{file:{tmp_path}/root}}";'
    (tmp_path / "root").write_text(root)
    config = {
        "listener.security.protocol.map": "client:SASL_SSL,internal:SSL,external:SASL_SSL",
        "ssl.client.auth": "none",
        "super.users": "User:root;User:alice",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": plain,
    }
    shown: list[str] = []
    data = tmp_path / "data"
    with LocalCluster(
        brokers=1, controllers=1, coordinators=1, mode="inprocess", secure=True, config=config, data=data
    ) as cluster:
        common = (
            f"bootstrap.servers={cluster.bootstrap_servers}\nsecurity.protocol=SASL_SSL\n"
            f"ssl.ca.location={cluster.directory / 'security' / 'ca.pem'}\n"
        )
        files = {}
        for name, mechanism, user, secret in (
            ("root", "PLAIN", "root", root),
            ("alice", "SCRAM-SHA-512", "alice", password),
            ("wrong", "SCRAM-SHA-512", "mallory", password),
        ):
            files[name] = tmp_path / f"{name}.properties"
            login = f"sasl.mechanism={mechanism}\nsasl.username={user}\nsasl.password={secret}\n"
            files[name].write_text(common + login)
        with Admin.from_properties(files["root"]) as admin:
            change = UserScramCredentialUpsertion("alice", password, ScramMechanism.SCRAM_SHA_512)
            admin.alter_user_scram_credentials([change])
            admin.create_topics(["orders"])
            shown += [repr(admin), repr(change)]
        with Producer.from_properties(files["alice"]) as producer:
            producer.send("orders", value=b"one").result(timeout=10)
            shown += [repr(producer), str(vars(producer)) if hasattr(producer, "__dict__") else ""]
        with Admin.from_properties(files["wrong"]) as admin, pytest.raises(SaslAuthenticationFailedError) as caught:
            admin.list_topics()
        shown += [str(caught.value), repr(caught.value)]
        of = ["--command-config", str(files["root"]), "-b", cluster.bootstrap_servers]
        assert run(["configs", "describe", "--broker", "1", "--all", *of]) == 0
        assert run(["users", "list", *of]) == 0
        assert run(["ps", "-o", "json", "--data", str(data)]) == 0
        run(["doctor", "--data", str(data), *of])
        run(["topics", "list", "--command-config", str(files["wrong"]), "-b", cluster.bootstrap_servers])
        arguments = command_lines()
    printed = capfd.readouterr()
    assert "alice" in printed.out
    assert "SASL_AUTHENTICATION_FAILED" in printed.err
    shown += [printed.out, printed.err, caplog.text]
    for secret in (password, root):
        assert [each for each in shown if secret in each] == []
        assert secret.encode() not in arguments
        assert holders(data, secret) == []
