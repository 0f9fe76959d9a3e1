"""The stack's containers are replaced one after the other, and the former container is started again if the new
container fails."""

from __future__ import annotations

import copy
import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("deploy_roll", ROOT / "deploy" / "roll.py")
assert spec is not None
assert spec.loader is not None
roll: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = roll
spec.loader.exec_module(roll)

LABEL = "com.docker.compose."
HEALTHY = {"healthy": True, "findings": [], "not_asked": []}


def inspected(
    service: str, number: int, version: str = "old", name: str = "", status: str = "running"
) -> dict[str, Any]:
    """The part of the engine's description of a container that the test needs."""
    name = name or f"hr-{service}-{number}"
    own_id = f"{abs(hash((name, version))):064x}"
    return {
        "Id": own_id,
        "Name": f"/{name}",
        "Image": f"sha256:{version}",
        "RestartCount": 0,
        "State": {"Running": status == "running", "Status": status, "Health": {"Status": "healthy"}},
        "Config": {
            "Hostname": own_id[:12],
            "Image": f"headrace/service:{version}",
            "Env": ["HEADRACE_SLOTS_DIR=/data"],
            "Healthcheck": {"Test": ["CMD", "health", "127.0.0.1", "9095"]},
            "Labels": {
                LABEL + "service": service,
                LABEL + "container-number": str(number),
                LABEL + "config-hash": f"hash of {version}",
            },
        },
        "HostConfig": {"NetworkMode": "hr-client", "ReadonlyRootfs": True},
        "NetworkSettings": {
            "Networks": {
                "hr-client": {"Aliases": [name, service, own_id[:12]], "IPAddress": "10.0.0.7"},
                "hr-internal": {"Aliases": [name, service, own_id[:12]]},
            }
        },
    }


class FakeEngine:
    """A fake engine: containers in a dictionary, and the received requests. New containers of a ``broken`` service end
    at once."""

    def __init__(self, *containers: dict[str, Any], broken: str = "", leader: int = 2) -> None:
        self.there = {each["Name"][1:]: each for each in containers}
        self.broken, self.leader = broken, leader
        self.done: list[str] = []
        self.doctor: dict[str, Any] | None = HEALTHY
        self.away_most = 0

    def containers(self, services: Any) -> list[Any]:
        found = [roll.Container(copy.deepcopy(each)) for each in self.there.values()]
        found = [each for each in found if each.service in services]
        return sorted(found, key=lambda each: (roll.SERVICES.index(each.service), each.number, each.is_former))

    def rendered(self, service: str) -> Any:
        return roll.Container(inspected(service, 99, "new"))

    def health(self, container: Any) -> str:
        return str(container.health)

    def renew_job(self) -> None:
        self.job_renewed_after = len(self.done)

    def create(self, name: str, body: dict[str, Any], more: dict[str, list[str]]) -> None:
        labels = body["Labels"]
        assert name not in self.there
        made = inspected(labels[LABEL + "service"], int(labels[LABEL + "container-number"]), "new", name, "created")
        assert body["Image"] == made["Config"]["Image"]
        assert list(more) == ["hr-internal"]
        self.there[name] = made

    def docker(self, *arguments: str) -> str:
        verb, name = arguments[0], arguments[-1]
        if verb == "rename":
            if name in self.there:
                raise roll.RollError(f"rename: the name {name} is already in use")
            self.there[name] = self.there.pop(arguments[1])
            self.there[name]["Name"] = f"/{name}"
        elif verb == "rm":
            assert "-f" in arguments or not self.there[name]["State"]["Running"]
            del self.there[name]
        elif verb == "stop":
            self.there[name]["State"] |= {"Running": False, "Status": "exited"}
            self.done.append(name)
        elif verb == "start":
            each = self.there[name]
            each["State"] |= {"Running": True, "Status": "running"}
            if each["Image"] == "sha256:new" and each["Config"]["Labels"][LABEL + "service"] == self.broken:
                each["State"]["Health"] = {"Status": "starting"}
                each["RestartCount"] = roll.RESTARTS_MAX
        away = [
            each for each in self.there.values() if not each["State"]["Running"] and roll.FORMER not in each["Name"]
        ]
        self.away_most = max(self.away_most, len(away))
        return ""

    def ask(self, name: str, *arguments: str) -> Any:
        assert self.there[name]["State"]["Running"]
        return {"leader_id": self.leader} if arguments == ("quorum", "status") else copy.deepcopy(self.doctor)

    def images(self) -> dict[str, str]:
        return {name: each["Image"].removeprefix("sha256:") for name, each in self.there.items()}


def stack(**changed: Any) -> FakeEngine:
    counts = (("controller", 3), ("broker", 3), ("coordinator", 2), ("registry", 1), ("edge", 1))
    return FakeEngine(
        *(inspected(service, number + 1) for service, count in counts for number in range(count)), **changed
    )


def run(engine: FakeEngine, *services: str, everything: bool = False, timeout_s: float = 0.0) -> int:
    return int(roll.Roll(engine, timeout_s=timeout_s).run(services or roll.SERVICES, everything=everything))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "LOOK_S", 0.0)


def test_all_that_differs_is_replaced_one_by_one_the_active_controller_as_the_last_of_its_kind() -> None:
    engine = stack()
    names = sorted(engine.there)
    assert run(engine) == 10
    assert engine.done == [
        *(f"hr-controller-{number}" for number in (1, 3, 2)),
        *(f"hr-broker-{number}" for number in (1, 2, 3)),
        *(f"hr-coordinator-{number}" for number in (1, 2)),
        "hr-registry-1",
        "hr-edge-1",
    ]
    assert engine.images() == dict.fromkeys(names, "new"), "under the same names, and nothing else is left"
    assert engine.away_most == 1
    assert engine.job_renewed_after == 10, "or the next `up` would replace all who depend on it, at once"


def test_what_is_as_the_file_says_stays_unless_all_is_asked_for() -> None:
    engine = stack()
    assert run(engine, "broker") == 3
    engine.done.clear()
    assert run(engine, "broker", "coordinator") == 2
    assert engine.done == ["hr-coordinator-1", "hr-coordinator-2"]
    engine.done.clear()
    assert run(engine, "broker", everything=True) == 3


def test_a_new_container_that_does_not_come_up_is_taken_away_and_the_former_one_is_back() -> None:
    engine = stack(broken="broker")
    with pytest.raises(
        roll.RollError, match="hr-broker-1 is starting after its replacement, and was restarted 3 times"
    ):
        run(engine)
    assert {each for name, each in engine.images().items() if "controller" in name} == {"new"}
    assert {each for name, each in engine.images().items() if "controller" not in name} == {"old"}
    assert all(each["State"]["Running"] for each in engine.there.values())
    assert len(engine.there) == 10


def test_a_container_that_the_engine_does_not_create_leaves_the_former_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = stack()

    def refuse(*_: object) -> None:
        raise roll.RollError("the engine does not create hr-controller-1: no such volume")

    monkeypatch.setattr(engine, "create", refuse)
    with pytest.raises(roll.RollError, match="no such volume"):
        run(engine)
    assert set(engine.images().values()) == {"old"}
    assert all(each["State"]["Running"] for each in engine.there.values())


@pytest.mark.parametrize("state", ["another is away", "under-replicated", "no node answers"])
def test_nothing_is_replaced_in_a_cluster_that_is_not_whole(state: str) -> None:
    engine = stack()
    if state == "another is away":
        engine.docker("stop", "hr-broker-3")
        engine.done.clear()
    elif state == "under-replicated":
        finding = {"rule": "under-replicated", "severity": "warning", "what": "3 partitions"}
        engine.doctor = {"healthy": False, "findings": [finding], "not_asked": []}
    else:
        engine.doctor = None
    with pytest.raises(roll.RollError, match="nothing was replaced; the cluster is not whole: "):
        run(engine)
    assert engine.done == []


def test_the_next_one_is_not_stopped_before_the_last_ones_copies_are_in_sync() -> None:
    engine = stack()
    finding = {"rule": "under-replicated", "severity": "warning", "what": "3 partitions"}
    whole = engine.ask

    def behind(name: str, *arguments: str) -> Any:
        if arguments == ("doctor",) and "hr-broker-1" in engine.done:
            return {"healthy": False, "findings": [finding], "not_asked": []}
        return whole(name, *arguments)

    engine.ask = behind  # type: ignore[method-assign]
    with pytest.raises(roll.RollError, match=r"hr-broker-1 was replaced, 6 containers were not; .* 3 partitions"):
        run(engine)
    assert engine.done[-1] == "hr-broker-1"


def test_the_doctors_words_of_an_upgrade_and_of_readers_stand_against_nothing() -> None:
    def found(rule: str, severity: str = "warning") -> dict[str, Any]:
        findings = [{"rule": rule, "severity": severity, "what": "it"}]
        return {"healthy": False, "findings": findings, "not_asked": []}

    for rule in ("version-mix", "feature-level", "group-lag"):
        assert roll.not_whole({}, found(rule)) == []
    assert roll.not_whole({}, found("feature-level", "error")) == ["it [feature-level]"]
    for rule in ("under-replicated", "voter-away", "broker-down", "disk-full", "a rule of tomorrow"):
        assert roll.not_whole({}, found(rule)) == [f"it [{rule}]"]
    silent = {"healthy": False, "findings": [], "not_asked": [{"what": "topics", "why": "late"}]}
    assert roll.not_whole({"b": "starting"}, silent) == ["b is starting", "not known: topics: late"]


def test_every_rule_that_stands_against_nothing_is_one_of_the_doctors() -> None:
    from headrace_tools.doctor.diagnosis import RULES

    assert set(RULES) >= roll.NOT_IN_THE_WAY


@pytest.mark.parametrize("successor", ["none", "unwell", "well"])
def test_a_roll_that_was_cut_off_is_put_in_order_by_the_next(successor: str) -> None:
    engine = stack()
    former = engine.there.pop("hr-broker-2")
    name = "hr-broker-2" + roll.FORMER
    engine.there[name] = former | {"Name": f"/{name}", "State": {"Running": False, "Status": "exited"}}
    if successor != "none":
        engine.there["hr-broker-2"] = inspected("broker", 2, "new")
    if successor == "unwell":
        engine.there["hr-broker-2"]["State"]["Health"] = {"Status": "unhealthy"}
    roll.Roll(engine, timeout_s=0.0)._mend()
    assert engine.images()["hr-broker-2"] == ("new" if successor == "well" else "old")
    assert engine.there["hr-broker-2"]["State"]["Running"]
    assert name not in engine.there


def test_asked_to_end_it_ends_between_two() -> None:
    engine = stack()
    rolling = roll.Roll(engine, timeout_s=0.0)
    whole = engine.ask

    def press(name: str, *arguments: str) -> Any:
        rolling.ends = rolling.ends or len(engine.done) == 2
        return whole(name, *arguments)

    engine.ask = press  # type: ignore[method-assign]
    assert rolling.run(roll.SERVICES, everything=False) == 2
    assert len(engine.done) == 2
    assert len(engine.there) == 10


def as_before(engine: FakeEngine) -> bool:
    """Whether all nine containers run, with the former image and under their names."""
    names = set(stack().there)
    return engine.images() == dict.fromkeys(names, "old") and all(
        each["State"]["Running"] for each in engine.there.values()
    )


LOST = [
    TimeoutError("timed out"),
    ConnectionResetError("the engine restarts"),
    http.client.BadStatusLine(""),
    subprocess.TimeoutExpired(["docker"], 60),
    ValueError("no JSON"),
    roll.RollError("refused"),
]


@pytest.mark.parametrize("error", LOST, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("step", ["stop", "stopped", "rename", "renamed", "create", "created", "start", "health"])
def test_whatever_step_fails_before_or_after_it_was_done_the_former_container_is_back(
    step: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stack()
    docker, create, health = engine.docker, engine.create, engine.health
    failed: list[str] = []

    def fail(now: str) -> None:
        if now == step and not failed:
            failed.append(now)
            raise error

    def lost_docker(*arguments: str) -> str:
        fail(arguments[0])
        docker(*arguments)
        fail({"stop": "stopped", "rename": "renamed"}.get(arguments[0], ""))
        return ""

    def lost_create(*arguments: Any) -> None:
        fail("create")
        create(*arguments)
        fail("created")  # `docker network connect`, or a missing answer

    def lost_health(container: Any) -> str:
        if container.inspected["Image"] == "sha256:new":
            fail("health")
        return health(container)

    monkeypatch.setattr(engine, "docker", lost_docker)
    monkeypatch.setattr(engine, "create", lost_create)
    monkeypatch.setattr(engine, "health", lost_health)
    with pytest.raises(roll.RollError) as raised:
        run(engine, "broker")
    assert str(error) in str(raised.value)
    assert failed
    assert as_before(engine)


def test_an_engine_that_is_being_restarted_is_asked_again_until_the_former_container_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = stack()
    containers, refused = engine.containers, [0]

    def cut(*_: object) -> None:
        refused[0] = 5
        raise ConnectionResetError("the engine restarts")

    def not_yet(services: Any) -> list[Any]:
        if refused[0]:
            refused[0] -= 1
            raise roll.RollError("cannot connect to the engine")
        return containers(services)

    monkeypatch.setattr(engine, "create", cut)
    monkeypatch.setattr(engine, "containers", not_yet)
    with pytest.raises(roll.RollError, match="the engine restarts"):
        run(engine, "broker")
    assert refused == [0]
    assert as_before(engine)


def test_an_engine_that_is_gone_is_reported_with_why_and_the_next_roll_puts_the_former_one_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = stack()

    def gone(*_: object) -> Any:
        raise roll.RollError("cannot connect to the engine")

    def cut(*_: object) -> None:
        monkeypatch.setattr(engine, "docker", gone)
        raise ConnectionResetError("the engine is gone")

    with monkeypatch.context() as patched:
        patched.setattr(roll, "PUT_BACK_S", 0.0)
        patched.setattr(engine, "create", cut)
        with pytest.raises(
            roll.RollError, match=r"the engine is gone\nhr-broker-1 does not run, .*; run this script again"
        ):
            run(engine, "broker")
    monkeypatch.undo()
    assert "hr-broker-1" not in engine.there
    roll.Roll(engine, timeout_s=0.0)._mend()
    assert as_before(engine)


def test_a_terminal_that_is_gone_ends_no_roll(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

        flush = None

    engine = stack()
    monkeypatch.setattr(roll.sys, "stderr", Gone())
    assert run(engine, "broker") == 3
    monkeypatch.undo()
    assert [engine.images()[f"hr-broker-{number}"] for number in (1, 2, 3)] == ["new"] * 3


def test_killed_between_stop_and_rename_the_next_roll_says_at_once_what_to_start() -> None:
    engine = stack()
    engine.docker("stop", "hr-broker-1")
    engine.done.clear()
    with pytest.raises(
        roll.RollError, match=r"are stopped, .*: hr-broker-1; run `docker start hr-broker-1`, then this script"
    ):
        run(engine, timeout_s=3600.0)
    assert engine.done == []
    engine.docker("start", "hr-broker-1")
    assert run(engine) == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_a_signal_ends_it_with_130_once_the_cluster_is_whole_again(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = stack()
    whole = engine.ask
    asked: list[str] = []

    def behind(name: str, *arguments: str) -> Any:
        if arguments == ("doctor",) and engine.done:
            asked.append(name)
            if len(asked) == 1:
                os.kill(os.getpid(), number)
            if len(asked) < 4:
                return None
        return whole(name, *arguments)

    engine.ask = behind  # type: ignore[method-assign]
    monkeypatch.setattr(roll, "Engine", lambda: engine)
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert roll.main(["broker"]) == 130
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(asked) == 4, "it waited until the doctor found nothing"
    assert engine.done == ["hr-broker-1"]
    assert "replaced 1 containers" in capsys.readouterr().out


def test_under_nohup_it_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = stack()
    create = engine.create

    def hang_up(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        create(*arguments)

    monkeypatch.setattr(engine, "create", hang_up)
    monkeypatch.setattr(roll, "Engine", lambda: engine)
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert roll.main(["broker"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(engine.done) == 3


def test_asked_to_end_before_anything_was_replaced_it_waits_for_nothing() -> None:
    engine = stack()
    engine.doctor = None
    rolling = roll.Roll(engine, timeout_s=3600.0)
    rolling.ends = True
    assert rolling.run(roll.SERVICES, everything=False) == 0
    assert engine.done == []


def real_engine(path: Path) -> Any:
    """The requests without the initial queries."""
    engine = object.__new__(roll.Engine)
    engine._socket = str(path)
    return engine


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired(["docker"], 60), OSError(11, "no more processes")])
def test_a_check_that_does_not_end_has_found_nothing_out_and_ctrl_c_is_not_for_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sessions = []

    def late(_: object, **how: Any) -> None:
        sessions.append(how["start_new_session"])
        raise error

    monkeypatch.setattr(roll.subprocess, "run", late)
    container = inspected("broker", 1)
    container["State"]["Health"] = {"Status": "starting"}
    assert real_engine(tmp_path).health(roll.Container(container)) == "starting"
    assert real_engine(tmp_path).ask("hr-broker-1", "doctor") is None
    assert sessions == [True, True]


def test_an_engine_that_does_not_answer_the_creation_is_a_roll_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    path = Path("engine.sock")
    with pytest.raises(roll.RollError, match="does not answer whether it creates hr-broker-1: FileNotFoundError"):
        real_engine(path).create("hr-broker-1", {}, {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                asked = accepted.recv(65536)
                while asked and not asked.endswith(b"\r\n\r\n{}"):
                    asked += accepted.recv(65536)
                accepted.sendall(b"what?\r\n\r\n")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        with pytest.raises(roll.RollError, match="does not answer whether it creates hr-broker-1: BadStatusLine"):
            real_engine(path).create("hr-broker-1", {}, {})
        answering.join(60)


def test_a_container_is_created_as_compose_would_under_the_name_and_number_of_the_former() -> None:
    wanted, replaced = roll.Container(inspected("broker", 4, "new")), roll.Container(inspected("broker", 2))
    body, more = roll.body_of(wanted, replaced)
    assert body["Labels"] == wanted.inspected["Config"]["Labels"] | {LABEL + "container-number": "2"}
    assert body["Image"] == "headrace/service:new"
    assert body["HostConfig"] == wanted.inspected["HostConfig"]
    assert "Hostname" not in body, "its own, not that of the one that was made for a look"
    assert body["NetworkingConfig"] == {"EndpointsConfig": {"hr-client": {"Aliases": ["hr-broker-2", "broker"]}}}
    assert more == {"hr-internal": ["hr-broker-2", "broker"]}
    assert wanted.number == 4, "what the engine told is as it was"
    named = copy.deepcopy(wanted.inspected)
    named["Config"]["Hostname"] = "by-the-file"
    assert roll.body_of(roll.Container(named), replaced)[0]["Hostname"] == "by-the-file"


def test_an_unknown_service_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        roll.main(["brokers"])
    assert ended.value.code == 2
    assert "the services are controller, broker, coordinator, registry, console, edge" in capsys.readouterr().err
