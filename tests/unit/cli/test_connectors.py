"""``headrace connectors`` against an HTTP server that answers as Kafka Connect 4.3 does, faults included."""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from headrace_tools import kafka_connect
from headrace_tools.cli.app import run
from headrace_tools.kafka_connect import ConnectClient, ConnectRebalancingError, InvalidConnectorConfigError

CONFIG = {"connector.class": "FileStreamSource", "topic": "lines", "file": "/tmp/lines.txt"}
FLAGS = [word for key, value in CONFIG.items() for word in ("-c", f"{key}={value}")]
TRACE = (
    "org.apache.kafka.connect.errors.ConnectException: no file\n\tat Task.start(Task.java:74)\n"
    "Caused by: java.nio.file.NoSuchFileException: /none\n\t... 12 more\n"
)
INVALID = (
    "Connector configuration is invalid and contains the following 2 error(s):\n"
    'Missing required configuration "topic" which has no default value.\n'
    "Invalid value x for configuration tasks.max: Not a number of type INT\n"
    "You can also find the above list of errors at the endpoint `/connector-plugins/{connectorType}/config/validate`"
)
NO_CLASS = (
    "Failed to find any class that implements Connector and which name matches Nope, available connectors are: "
    "PluginDesc{klass=class org.apache.kafka.connect.file.FileStreamSourceConnector, name='x', version='4.3.0', "
    "encodedVersion=4.3.0, type=source, typeName='source', location='classpath'}, "
    "PluginDesc{klass=class org.apache.kafka.connect.file.FileStreamSinkConnector, name='y', version='4.3.0'}"
)
REBALANCE = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"


class Connect(ThreadingHTTPServer):
    """A worker with connectors. ``rebalances``: how many more requests that change something are refused with 409.
    ``answers``: fixed answers, (status, body), which come first. ``asked``: the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.configs: dict[str, dict[str, str]] = {}
        self.states: dict[str, list[str]] = {}  # of the connector, then of its tasks
        self.rebalances = 0
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[tuple[str, str]] = []
        self.authorizations: list[str | None] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Connect:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is part of a test; any other error is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def add(self, name: str, *states: str, config: dict[str, str] = CONFIG) -> None:
        self.configs[name] = config | {"name": name}
        self.states[name] = list(states)

    def status(self, name: str) -> dict[str, Any]:
        def part(state: str) -> dict[str, str]:
            return {"state": state, "worker_id": "w1:8083", "version": "4.3.0"} | (
                {"trace": TRACE} if state == "FAILED" else {}
            )

        connector, *tasks = self.states[name]
        return {
            "name": name,
            "connector": part(connector),
            "tasks": [{"id": number} | part(state) for number, state in enumerate(tasks)],
            "type": "source",
        }

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method != "GET" and self.rebalances > 0:
            self.rebalances -= 1
            return 409, {"error_code": 409, "message": REBALANCE}
        parts = urlsplit(path)
        words = [unquote(each) for each in parts.path.split("/")[1:]]
        query = parse_qs(parts.query)
        if words == ["connectors"] and method == "GET":
            assert query == {"expand": ["status", "info"]}
            return 200, {
                name: {"status": self.status(name), "info": {"name": name, "config": config, "tasks": []}}
                for name, config in self.configs.items()
            }
        if words == ["connectors"]:
            assert body.keys() <= {"name", "config", "initial_state"}
            return self._create(body["name"], body["config"], body.get("initial_state", "RUNNING"))
        name, *more = words[1:]
        if (method, more) == ("PUT", ["config"]):
            is_new = name not in self.configs
            self.add(name, "RUNNING", "RUNNING", config=body)
            return (201 if is_new else 200), {"name": name, "config": body, "tasks": [], "type": "source"}
        if name not in self.configs:
            return 404, {"error_code": 404, "message": f"Connector {name} not found"}
        if (method, more) == ("GET", ["status"]):
            return 200, self.status(name)
        if (method, more) == ("DELETE", []):
            del self.configs[name]
            return 204, None
        if (method, more) == ("POST", ["restart"]):
            return 202, self.status(name)
        assert (method, more[0], more[2:]) == ("POST", "tasks", ["restart"])
        if int(more[1]) >= len(self.states[name]) - 1:
            return 404, {"error_code": 404, "message": f"Unknown task: {name}-{more[1]}"}
        return 204, None

    def _create(self, name: str, config: dict[str, str], state: str) -> tuple[int, Any]:
        if name in self.configs:
            return 409, {"error_code": 409, "message": f"Connector {name} already exists"}
        if config["connector.class"] == "Nope":
            return 400, {"error_code": 400, "message": NO_CLASS}
        if "topic" not in config:
            return 400, {"error_code": 400, "message": INVALID}
        self.add(name, state, *config.get("states", state).split(","), config=config)
        return 201, {"name": name, "config": config, "tasks": [], "type": "source"}


class _Handler(BaseHTTPRequestHandler):
    server: Connect
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path))
        self.server.authorizations.append(self.headers.get("Authorization"))
        if self.server.answers:
            status, data = self.server.answers.pop(0)
        else:
            status, document = self.server.answer(self.command, self.path, json.loads(raw) if raw else None)
            data = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if data[:1] in (b"", b"{", b"[") else "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """The test's output is not the place for an access log."""


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    monkeypatch.setattr(kafka_connect, "RETRY_S", 0.01)
    with Connect() as server:
        monkeypatch.setenv("HEADRACE_CONNECT_URL", server.url)
        yield server


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["connectors", *words])
    output = capsys.readouterr()
    return code, output.out, output.err


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr of a command that fails."""
    code, out, err = called(capsys, *words)
    assert (code, out) == (1, ""), err
    (line,) = err.splitlines()
    assert line.startswith("headrace: ")
    return line


# -- the commands ------------------------------------------------------------------------------------------------------


def test_a_connector_is_created_listed_restarted_and_deleted(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(capsys, "list")[:2] == (0, "NAME  TYPE  STATE  TASKS  CLASS\n")
    code, out, _ = called(capsys, "create", "lines", *FLAGS, "-o", "json")
    assert (code, json.loads(out)) == (0, {"name": "lines", "created": True})
    assert connect.configs == {"lines": CONFIG | {"name": "lines"}}
    code, out, _ = called(capsys, "list")
    assert (code, out.splitlines()[1].split()) == (0, ["lines", "source", "RUNNING", "1/1", "FileStreamSource"])
    for words, path in (
        ([], "restart?includeTasks=true&onlyFailed=false"),
        (["--failed"], "restart?includeTasks=true&onlyFailed=true"),
        (["--task", "0"], "tasks/0/restart"),
    ):
        assert called(capsys, "restart", "lines", *words)[0] == 0
        assert connect.asked[-1] == ("POST", f"/connectors/lines/{path}")
    assert called(capsys, "delete", "lines")[:2] == (0, "deleted lines\n")
    assert connect.configs == {}


def test_a_file_that_wants_a_stopped_connector_gets_one(
    connect: Connect, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "lines.json"
    document = {"name": "lines", "config": CONFIG, "initial_state": "STOPPED"}
    file.write_text(json.dumps(document))
    assert called(capsys, "create", "lines", "-f", str(file))[0] == 0
    assert connect.states["lines"][0] == "STOPPED"
    for words, changed in (
        (["--replace"], {}),  # Connect's PUT takes no state
        (["--wait", "1s"], {}),
        ([], {"initial_state": "ASLEEP"}),
        ([], {"initial_sate": "STOPPED"}),
    ):
        file.write_text(json.dumps(document | changed))
        asked = len(connect.asked)
        code, _, err = called(capsys, "create", "lines", "-f", str(file), *words)
        assert (code, len(connect.asked)) == (2, asked), err


def test_a_host_that_is_no_name_is_an_address_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert "CONNECT_UNAVAILABLE" in failed(capsys, "list", "--connect-url", "http://a..b:8083")


def test_a_list_and_a_status_as_json_have_every_task_and_the_whole_trace(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect.add("b", "RUNNING", "RUNNING", "FAILED")
    connect.add("a", "PAUSED")
    task = {"worker_id": "w1:8083", "trace": None}
    status = {
        "name": "b",
        "type": "source",
        "state": "RUNNING",
        "worker_id": "w1:8083",
        "trace": None,
        "tasks": [{"id": 0, "state": "RUNNING"} | task, {"id": 1, "state": "FAILED"} | task | {"trace": TRACE}],
    }
    assert json.loads(called(capsys, "status", "b", "-o", "json")[1]) == status
    first, second = json.loads(called(capsys, "list", "-o", "json")[1])
    assert (first["name"], first["state"], first["tasks"]) == ("a", "PAUSED", [])
    assert second == status | {"class": "FileStreamSource"}


def test_a_status_shows_why_a_task_failed_in_one_line(connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    connect.add("lines", "RUNNING", "FAILED")
    _, out, _ = called(capsys, "status", "lines")
    cause = "org.apache.kafka.connect.errors.ConnectException: no file (java.nio.file.NoSuchFileException: /none)"
    assert out.splitlines()[1].split() == ["source", "RUNNING", "w1:8083", "-"]
    assert out.splitlines()[2] == f"task 0  FAILED   w1:8083  {cause}"


@pytest.mark.parametrize(
    ("states", "fail_on", "code"),
    [
        (("RUNNING", "RUNNING"), "not-running", 0),
        (("RUNNING", "PAUSED"), "failed", 0),
        (("RUNNING", "PAUSED"), "not-running", 3),
        (("RUNNING",), "not-running", 3),
        (("RUNNING", "RUNNING", "FAILED"), "failed", 3),
        (("FAILED", "RUNNING"), "not-running", 3),
    ],
)
@pytest.mark.parametrize("words", [("list",), ("status", "lines")])
def test_fail_on_decides_the_exit_code(
    connect: Connect,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    states: tuple[str, ...],
    fail_on: str,
    code: int,
) -> None:
    connect.add("lines", *states)
    found, out, err = called(capsys, *words, "--fail-on", fail_on)
    assert found == code
    assert states[0] in out
    assert err.startswith("lines: ") == (code == 3)


# -- configurations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_file_has_the_configuration_and_flags_override_its_keys(
    connect: Connect, capsys: pytest.CaptureFixture[str], tmp_path: Path, wrapped: bool
) -> None:
    file = tmp_path / "lines.json"
    config = CONFIG | {"tasks.max": 3, "errors.log.enable": True, "ratio": 1.50}
    file.write_text(json.dumps({"name": "lines", "config": config} if wrapped else config))
    assert called(capsys, "create", "lines", "-f", str(file), "-c", "topic=other", "-c", "poll.interval.ms=5s")[0] == 0
    given = {
        "topic": "other",
        "tasks.max": "3",
        "errors.log.enable": "true",
        "ratio": "1.5",
        "poll.interval.ms": "5000",
    }
    assert connect.configs["lines"] == CONFIG | given | {"name": "lines"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[1]", "must be a JSON object"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"name": "other", "config": {}}', "has the name 'other', not 'lines'"),
        ('{"name": "other", "topic": "x"}', "has the name 'other', not 'lines'"),
        ('{"topic": null}', "the value of 'topic' must be a string"),
        ('{"topic": {"a": "b"}}', "the value of 'topic' must be a string"),
        ('{"topic": "%s"}' % ("x" * 1_100_000), "is larger than 1,048,576 bytes"),
        ("{}", "pass the configuration"),
    ],
)
def test_a_wrong_file_is_wrong_usage(
    connect: Connect, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, fault: str
) -> None:
    file = tmp_path / "lines.json"
    file.write_text(text)
    code, out, err = called(capsys, "create", "lines", "-f", str(file))
    assert (code, out) == (2, "")
    assert fault in " ".join(err.replace("│", " ").split())
    assert connect.asked == []


def test_a_name_that_connect_could_not_find_again_is_refused(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/b", "a%b", "a\\b", "..", "a\nb"):
        assert failed(capsys, "create", name, *FLAGS).endswith("[INVALID_ARGUMENT]")
    assert connect.asked == []
    connect.add("a b?ü#", "RUNNING")
    assert called(capsys, "status", "a b?ü#")[0] == 0


def test_replace_changes_the_configuration_and_says_so(connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "create", "lines", *FLAGS, "--replace")[1] == "created lines\n"
    changed = called(capsys, "create", "lines", "-c", "topic=other", "--replace")
    assert changed[1] == "changed the configuration of lines\n"
    assert connect.configs["lines"] == {"topic": "other", "name": "lines"}
    assert called(capsys, "create", "lines", *FLAGS, "--replace", "--wait", "1s")[0] == 2


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_wait_returns_when_connector_and_tasks_run(connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    connect.add("lines", "RUNNING", "UNASSIGNED")
    unassigned = (200, json.dumps(connect.status("lines")).encode())
    refused = (409, json.dumps({"error_code": 409, "message": REBALANCE}).encode())
    none_yet = (404, b'{"error_code": 404, "message": "No status found for connector lines"}')
    connect.answers = [refused, refused, (201, b"{}"), none_yet, unassigned, unassigned]
    connect.add("lines", "RUNNING", "RUNNING")
    assert called(capsys, "create", "lines", *FLAGS, "--wait", "30s")[:2] == (0, "created lines\n")
    assert [method for method, _ in connect.asked] == ["POST"] * 3 + ["GET"] * 5


def test_wait_fails_when_a_task_fails_or_the_time_is_over(connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "create", "lines", *FLAGS, "-c", "states=RUNNING,FAILED", "--wait", "10s")
    assert (code, out) == (1, "")
    assert "connector 'lines' is created, but has failed: task 1: org.apache" in err
    assert err.endswith("[CONNECTOR_FAILED]\n")
    code, out, err = called(capsys, "create", "slow", *FLAGS, "-c", "states=UNASSIGNED", "--wait", "50ms")
    assert (code, out) == (1, "")
    assert "does not run after 0.05 s (its states: connector RUNNING, task 0 UNASSIGNED)" in err
    assert err.endswith("[REQUEST_TIMED_OUT]\n")


def test_the_status_of_a_deleted_connector_of_the_same_name_does_not_count(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect.add("stale", "RUNNING", "FAILED")
    connect.answers = [(201, b"{}"), (200, json.dumps(connect.status("stale")).encode())]
    connect.add("stale", "RUNNING", "RUNNING")
    assert called(capsys, "create", "stale", *FLAGS, "--wait", "10s")[0] == 0


# -- faults ------------------------------------------------------------------------------------------------------------


def test_each_refusal_has_its_own_code(connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    connect.add("lines", "RUNNING", "RUNNING")
    exists = failed(capsys, "create", "lines", *FLAGS)
    assert "Connector lines already exists; pass --replace" in exists
    assert exists.endswith("[CONNECTOR_ALREADY_EXISTS]")
    for words in (["status", "none"], ["delete", "none"], ["restart", "none"], ["restart", "lines", "--task", "7"]):
        assert failed(capsys, *words).endswith("`headrace connectors list` shows the connectors [CONNECTOR_NOT_FOUND]")
    nope = failed(capsys, "create", "x", "-c", "connector.class=Nope")
    assert "no Connector of the class Nope; the worker has FileStreamSinkConnector, FileStreamSourceConnector" in nope
    assert nope.endswith("[INVALID_CONNECTOR_CONFIG]")
    with pytest.raises(InvalidConnectorConfigError) as refused:
        ConnectClient([connect.url], timeout_s=5).create("x", {"connector.class": "FileStreamSource"})
    assert refused.value.reasons == (
        'Missing required configuration "topic" which has no default value.',
        "Invalid value x for configuration tasks.max: Not a number of type INT",
    )
    assert refused.value.status == 400


def test_a_rebalance_is_waited_for_but_not_forever(
    connect: Connect, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]  # stands still while a worker answers: a busy machine takes its time

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(kafka_connect, "RETRY_S", 5.0)
    monkeypatch.setattr(ConnectClient.__init__, "__kwdefaults__", {"now": lambda: clock[0], "sleep": sleep})
    connect.rebalances = 5
    assert called(capsys, "create", "lines", *FLAGS)[0] == 0
    assert [method for method, _ in connect.asked] == ["POST"] * 6
    connect.rebalances = 1_000_000
    line = failed(capsys, "delete", "lines", "--timeout", "20s")
    assert f"were still rebalancing after 20 s ({REBALANCE}); repeat the command with a longer --timeout" in line
    assert line.endswith("[CONNECT_REBALANCING]")
    assert "lines" in connect.configs


def test_the_time_of_the_retries_is_bounded_by_the_clock() -> None:
    clock = [0.0]
    with Connect() as server:
        server.rebalances = 1_000
        client = ConnectClient(
            [server.url], timeout_s=60, now=lambda: clock[0], sleep=lambda s: clock.__setitem__(0, clock[0] + s)
        )
        with pytest.raises(ConnectRebalancingError):
            client.delete("lines")
        assert 58 <= clock[0] <= 60
        assert len(server.asked) == 119


def test_a_worker_that_is_gone_is_skipped(
    connect: Connect, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{held.getsockname()[1]}"
        assert called(capsys, "list", "--connect-url", f"{gone},{connect.url}")[0] == 0
        line = failed(capsys, "list", "--connect-url", gone)
        assert f"no Connect worker answers ({gone}: connection refused)" in line
        assert line.endswith("[CONNECT_UNAVAILABLE]")


def test_a_worker_that_answers_too_late_or_breaks_off_may_have_done_it(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line = failed(capsys, "delete", "lines", "--connect-url", url, "--timeout", "100ms")
        assert "did not answer within 0.1 s" in line
        assert "may have been carried out" in line
        assert line.endswith("[REQUEST_TIMED_OUT]")

        def cut_off() -> None:
            for _ in range(2):
                peer, _ = silent.accept()
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
                peer.close()

        while_it_asks = threading.Thread(target=cut_off)
        while_it_asks.start()
        line = failed(capsys, "list", "--connect-url", url)
        while_it_asks.join()
        assert "gave no complete answer" in line
        assert line.endswith("[CONNECT_UNAVAILABLE]")


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (400, b"<html>Ambiguous URI</html>", "text/html in place of JSON; is Kafka Connect at this address?"),
        (200, b"[" * 100_000, "in place of JSON"),
        (200, b"[1]", "JSON that Kafka Connect does not send"),
        (200, b'{"x": 1}', "JSON that Kafka Connect does not send"),
        (200, b'{"x": {"info": {"config": {}}, "status": {"connector": {}}}}', "JSON that Kafka Connect does not send"),
        (302, b"{}", "answered with HTTP status 302: no reason is given"),
        (
            500,
            b'{"error_code": 500, "message": "Request\\ntimed\\u001b[31m out"}',
            "status 500: Request timed?[31m out",
        ),
        (401, b'{"error_code": 401, "message": "who?"}', "refused the user (HTTP status 401: who?); write the URL as"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_one_line(
    connect: Connect, capsys: pytest.CaptureFixture[str], status: int, body: bytes, fault: str
) -> None:
    connect.answers = [(status, body)]
    line = failed(capsys, "list")
    assert fault in line
    assert line.endswith("[CONNECT_REFUSED]")


def test_an_endless_answer_is_not_read_to_its_end(
    connect: Connect, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_connect, "ANSWER_BYTES_MAX", 100_000)
    connect.answers = [(200, b" " * 400_000)]
    assert "the answer is larger than 100,000 bytes" in failed(capsys, "list")


def test_user_and_password_are_sent_and_never_shown(connect: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    host = connect.url.removeprefix("http://")
    assert called(capsys, "list", "--connect-url", f"http://ann:p%40ss@{host}/")[0] == 0
    assert connect.authorizations[-1] == "Basic " + base64.b64encode(b"ann:p@ss").decode()
    connect.answers = [(500, b"{}")]
    assert "p%40ss" not in failed(capsys, "list", "--connect-url", f"http://ann:p%40ss@{host}")


@pytest.mark.parametrize("url", ["ftp://h:1", "http://", "http://u:secret@h:x", "http://h:1?q", "http://[::1", ","])
def test_what_is_no_url_is_wrong_usage(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, err = called(capsys, "list", "--connect-url", url)
    assert (code, out) == (2, "")
    assert "--connect-url" in err
    assert "secret" not in err
