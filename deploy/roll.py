"""Replace the stack's containers one by one, so that each has the image and the settings that the compose file names
now. In contrast, `docker compose up` replaces all containers of a changed service at once.

    HEADRACE_VERSION=0.2.0 python3 deploy/roll.py          changed containers; run it beside the compose file
    python3 deploy/roll.py --all                           also unchanged containers: a rolling restart
    python3 deploy/roll.py broker                          only these services

The order is: controllers (the active one last), brokers, coordinators, registries, the edge. Before each
stop, and at the end, every container must be healthy and `headrace doctor` must find no obstacle (under-replicated
partitions, absent nodes); otherwise the roll stops. A container keeps its number, so its slot, id and records. A new
container that does not become healthy is removed, and the former container is restored.

Compose cannot replace a single container: it creates missing containers under the next number, never under a free
number. The script therefore lets Compose create one more container, without starting it, and reads the configuration of
this container from the engine. After that the script creates a container with this configuration under the name and
number of the container to replace. A later `docker compose up` finds the new container up to date. The script needs
only Python and the engine's socket.

Exit code 1: the cluster is not whole, or a container did not come up; 130: ended between two containers by Ctrl-C,
SIGTERM, or SIGHUP of a closed terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Services in the order in which the roll replaces them. Services that are not in the list have no state: `docker
#: compose up` replaces them.
SERVICES = ("controller", "broker", "coordinator", "registry", "console", "edge")
#: The job that the other services depend on. The script renews the job itself, because Compose would also replace the
#: services that depend on it.
JOB = "format"
#: Suffix of the former container's name until the new container is healthy.
FORMER = "-former"
#: Doctor rules that do not block the next stop: about readers, machines, and the upgrade itself.
NOT_IN_THE_WAY = frozenset(
    {"version-mix", "group-lag", "group-storm", "group-records-lost", "disk-slow", "clock-skew", "descriptors"}
)
STOP_S = 40
#: After this number of unexpected ends of a new container, the roll stops waiting for it.
RESTARTS_MAX = 3
LOOK_S = 0.5
TELL_S = 5.0
#: How long to try to restore a former container (seconds): within this time a restarting engine responds again.
PUT_BACK_S = 60.0
_LABEL = "com.docker.compose."
Json = dict[str, Any]


class RollError(Exception):
    """The roll stopped. The message of the error says why the roll stopped, and what to do."""


#: Errors of a step that replaces a container: the engine refuses the step, or the engine, its client or its answer is
#: missing.
FAILURES = (RollError, OSError, ValueError, subprocess.SubprocessError, http.client.HTTPException)


# -- planning, from container descriptions; nothing is requested from the engine
# ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the stack as the engine describes it (`docker inspect`)."""

    inspected: Json

    @property
    def id(self) -> str:
        return str(self.inspected["Id"])

    @property
    def name(self) -> str:
        return str(self.inspected["Name"]).removeprefix("/")

    @property
    def service(self) -> str:
        return str(self.inspected["Config"]["Labels"][_LABEL + "service"])

    @property
    def number(self) -> int:
        return int(self.inspected["Config"]["Labels"][_LABEL + "container-number"])

    @property
    def is_former(self) -> bool:
        return self.name.endswith(FORMER)

    @property
    def is_running(self) -> bool:
        return bool(self.inspected["State"]["Running"])

    @property
    def health(self) -> str:
        """healthy, starting or unhealthy; for a container that does not run: exited, created ..."""
        state = self.inspected["State"]
        return str(state.get("Health", {}).get("Status", "healthy") if self.is_running else state["Status"])

    @property
    def restarts(self) -> int:
        return int(self.inspected["RestartCount"])

    @property
    def check(self) -> list[str]:
        """The command of the container's health check; empty if the container has no health check that can be run."""
        kind, *words = (self.inspected["Config"].get("Healthcheck") or {}).get("Test") or [""]
        return [str(each) for each in words] if kind == "CMD" else []

    def is_as(self, wanted: Container) -> bool:
        """Whether this container has the same image and compose configuration as ``wanted``."""
        ours, theirs = (each.inspected["Config"]["Labels"][_LABEL + "config-hash"] for each in (self, wanted))
        return bool(self.inspected["Image"] == wanted.inspected["Image"] and ours == theirs)


def next_of(waiting: Collection[Container], leader: int | None) -> Container:
    """The next container. ``leader``: the active controller's number, if any."""
    return min(
        waiting,
        key=lambda each: (
            SERVICES.index(each.service),
            each.service == "controller" and each.number == leader,
            each.number,
        ),
    )


def body_of(wanted: Container, replaced: Container) -> tuple[Json, dict[str, list[str]]]:
    """The engine's request to create ``wanted`` under the name and number of ``replaced``: the body, and further
    networks with their aliases (an engine before 25 accepts one network at creation)."""
    config = dict(wanted.inspected["Config"])
    if config.get("Hostname") == wanted.inspected["Id"][:12]:
        del config["Hostname"]  # drop the name, so that the engine sets a new host name
    config["Labels"] = config["Labels"] | {_LABEL + "container-number": str(replaced.number)}
    first = wanted.inspected["HostConfig"]["NetworkMode"]
    names: dict[str, list[str]] = {}
    for network, joined in wanted.inspected["NetworkSettings"]["Networks"].items():
        own = {wanted.inspected["Id"][:12], wanted.name}
        names[network] = [replaced.name, *(each for each in joined.get("Aliases") or () if each not in own)]
    endpoints = {first: {"Aliases": names.pop(first)}} if first in names else {}
    body = config | {"HostConfig": wanted.inspected["HostConfig"], "NetworkingConfig": {"EndpointsConfig": endpoints}}
    return body, names


def not_whole(health: Mapping[str, str], doctor: Json | None) -> list[str]:
    """The reasons why the next container must not be stopped. ``health``: the health of each container, by name;
    ``doctor``: the output of `headrace doctor -o json`, or None if the doctor gave no answer."""
    reasons = [f"{name} is {each}" for name, each in health.items() if each != "healthy"]
    if doctor is None:
        return [*reasons, "headrace doctor gave no answer"]
    if doctor["healthy"]:
        return reasons
    for finding in doctor["findings"]:
        is_upgrade = finding["rule"] == "feature-level" and finding["severity"] == "warning"
        if finding["rule"] not in NOT_IN_THE_WAY and not is_upgrade:
            reasons.append(f"{finding['what']} [{finding['rule']}]")
    return reasons + [f"not known: {each['what']}: {each['why']}" for each in doctor["not_asked"]]


# -- the engine --------------------------------------------------------------------------------------------------------


class Engine:
    """Docker and Compose for the project in the current directory. Refusals raise RollError."""

    def __init__(self) -> None:
        self.project = str(json.loads(self._run("docker", "compose", "config", "--format", "json"))["name"])
        address = os.environ.get("DOCKER_HOST") or self.docker(
            "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"
        )
        if not address.startswith("unix://"):
            raise RollError(f"the engine is at {address}; run this script on the machine with its socket (unix://)")
        self._socket = address.removeprefix("unix://")

    def docker(self, *arguments: str) -> str:
        return self._run("docker", *arguments)

    def containers(self, services: Collection[str]) -> list[Container]:
        """All containers, running or not, in the order of services and numbers."""
        labels = [f"label={_LABEL}project={self.project}", f"label={_LABEL}oneoff=False"]
        ids = self.docker("ps", "-aq", *(word for label in labels for word in ("--filter", label))).split()
        found = [Container(inspected) for inspected in json.loads(self.docker("inspect", *ids))] if ids else []
        found = [each for each in found if each.service in services]
        return sorted(found, key=lambda each: (SERVICES.index(each.service), each.number, each.is_former))

    def health(self, container: Container) -> str:
        """The engine's health status of the container. While a container starts, run its health check now instead of
        waiting for the engine's next check (every five seconds); no result within a minute counts as unknown."""
        if container.health == "starting" and container.check:
            command = ["docker", "exec", container.name, *container.check]
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, timeout=60
                )
            except (subprocess.TimeoutExpired, OSError):
                return "starting"
            return "starting" if done.returncode else "healthy"
        return container.health

    def rendered(self, service: str) -> Container:
        """Create a container of ``service`` as the compose file defines it now, remove it again, and return its
        description. The call of Compose names all services with their current counts. With --no-deps, or with only some
        services, Compose leaves dependencies out of its hash, and the next `up` would replace every container."""
        before = self.containers([service])
        counts = {each: len(self.containers([each])) + (each == service) for each in SERVICES}
        scales = [word for each, count in counts.items() for word in ("--scale", f"{each}={count}")]
        try:
            self._run("docker", "compose", "up", "--no-start", "--no-recreate", *scales)
            known = {each.inspected["Id"] for each in before}
            (made,) = (each for each in self.containers([service]) if each.inspected["Id"] not in known)
        finally:
            for each in self.containers([service]):
                if each.health == "created" and each.inspected["Id"] not in {other.inspected["Id"] for other in before}:
                    self.docker("rm", each.name)
        return made

    def renew_job(self) -> None:
        """Run the job JOB again, which changes nothing in the cluster. Without this run, the next `docker compose up`
        would replace every node together with the job."""
        self._run("docker", "compose", "up", "-d", "--no-deps", JOB)

    def create(self, name: str, body: Json, more_networks: Mapping[str, Sequence[str]]) -> None:
        """Create a container. Raises RollError if the engine refuses the request, or if the outcome is unknown: the
        container may then exist."""
        path, kind = f"/containers/create?name={name}", {"Content-Type": "application/json"}
        try:
            with contextlib.closing(_Local(self._socket)) as connection:
                connection.request("POST", path, json.dumps(body), kind)
                answer = connection.getresponse()
                text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise RollError(f"the engine does not answer whether it creates {name}: {error!r}") from error
        if answer.status != http.client.CREATED:
            raise RollError(f"the engine refused to create {name}: {text.strip()}")
        for network, names in more_networks.items():
            aliases = [word for each in names for word in ("--alias", each)]
            self.docker("network", "connect", *aliases, network, name)

    def ask(self, name: str, *arguments: str) -> Json | None:
        """The JSON document that `headrace ARGUMENTS -o json` prints in a container; None if it prints none. (The
        doctor prints a document also when its exit code is 1.)"""
        try:
            done = subprocess.run(
                ["docker", "exec", name, "headrace", *arguments, "-o", "json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                start_new_session=True,
                timeout=120,
            )
            found = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _run(self, *command: str) -> str:
        # (The command runs in a new session, because this script handles Ctrl-C itself, between two containers.)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, check=False
            )
        except OSError as error:
            raise RollError(f"{' '.join(command)}: {error}") from error
        if done.returncode:
            raise RollError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done.stdout.strip()


class _Local(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


# -- the roll ----------------------------------------------------------------------------------------------------------


class Roll:
    """``timeout_s``: how long a new container may take to become healthy, and how long the cluster may then take to be
    whole."""

    def __init__(self, engine: Engine, *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self.ends = False

    def run(self, services: Sequence[str], *, everything: bool) -> int:
        engine = self._engine
        self._mend()
        waiting, wanted = [], {}
        for service in services:
            there = engine.containers([service])
            if there:
                wanted[service] = engine.rendered(service)
                waiting += [each for each in there if everything or not each.is_as(wanted[service])]
        total = len(waiting)
        tell(f"{total} of {len(engine.containers(services))} containers are to be replaced")
        if not waiting:
            engine.renew_job()
            return 0
        self._until_whole("nothing was replaced", is_first=True)
        while waiting and not self.ends:
            asks_leader = any(each.service == "controller" for each in waiting)
            one = next_of(waiting, self._leader() if asks_leader else None)
            waiting.remove(one)
            tell(f"[{total - len(waiting)}/{total}] {one.name}")
            began = time.monotonic()
            self._replace(one, wanted[one.service])
            served = time.monotonic()
            self._until_whole(f"{one.name} was replaced, {len(waiting)} containers were not")
            tell(
                f"  healthy after {served - began:.1f} s, the cluster is whole {time.monotonic() - served:.1f} s later"
            )
        if not waiting:
            engine.renew_job()
        return total - len(waiting)

    def _mend(self) -> None:
        """Clean up after an interrupted roll: restore a former container unless its successor is healthy. Raises
        RollError for a container stopped under its own name: whether a roll or an operator stopped it is unknown."""
        found = self._engine.containers(SERVICES)
        for former in (each for each in found if each.is_former):
            name = former.name.removesuffix(FORMER)
            if any(each.name == name and each.health == "healthy" for each in found):
                self._engine.docker("rm", former.name)
            else:
                self._put_back(former, name)
        # (The engine restarts failed containers; a container that a command stopped stays stopped.)
        stopped = [each.name for each in self._engine.containers(SERVICES) if each.health == "exited"]
        if stopped:
            raise RollError(
                "nothing was replaced; the cluster is not whole: these containers are stopped, by an operator or by "
                f"an interrupted roll: "
                f"{', '.join(stopped)}; run `docker start {' '.join(stopped)}`, then this script again"
            )

    def _put_back(self, one: Container, name: str) -> None:
        """Restore ``one`` under ``name`` (from its current name), and remove its replacement."""
        tell(f"  {name}: restoring the former container")
        deadline = time.monotonic() + PUT_BACK_S
        while True:
            try:
                return self._put_back_now(one, name)
            except FAILURES as error:
                if time.monotonic() > deadline:
                    raise RollError(
                        f"{name} does not run, and its former container could not be restored: {error}; run this "
                        "script again"
                    ) from error
            time.sleep(LOOK_S)

    def _put_back_now(self, one: Container, name: str) -> None:
        """Reads the engine's state at each step, because a failed step may have taken effect."""
        engine = self._engine
        called = {each.id: each.name for each in engine.containers([one.service])}
        if one.id not in called:
            raise RollError(f"the container no longer exists ({one.id[:12]})")
        if called[one.id] != name:
            if name in called.values():
                with contextlib.suppress(*FAILURES):
                    engine.docker("stop", "-t", str(STOP_S), name)
                engine.docker("rm", "-f", name)
            engine.docker("rename", called[one.id], name)
        engine.docker("start", name)

    def _replace(self, one: Container, wanted: Container) -> None:
        engine, former = self._engine, one.name + FORMER
        body, more_networks = body_of(wanted, one)
        is_created = False
        try:
            engine.docker("stop", "-t", str(STOP_S), one.name)
            engine.docker("rename", one.name, former)
            engine.create(one.name, body, more_networks)
            is_created = True
            engine.docker("start", one.name)
            self._until_healthy(one)
        except FAILURES as error:
            said = ""
            if is_created:
                with contextlib.suppress(*FAILURES):
                    said = "\n" + engine.docker("logs", "--tail", "20", one.name)
            try:
                self._put_back(one, one.name)
            except RollError as worse:
                raise RollError(f"{error}{said}\n{worse}") from error
            raise RollError(f"{error}{said}") from error
        engine.docker("rm", former)

    def _until_healthy(self, one: Container) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            now = next((each for each in self._engine.containers([one.service]) if each.name == one.name), None)
            if now is None:
                raise RollError(f"{one.name} is gone after its replacement")
            health = self._engine.health(now)
            if health == "healthy":
                return
            if health == "unhealthy" or now.restarts >= RESTARTS_MAX or time.monotonic() > deadline:
                raise RollError(f"{one.name} is {health} after its replacement, and was restarted {now.restarts} times")
            time.sleep(LOOK_S)

    def _until_whole(self, so_far: str, *, is_first: bool = False) -> None:
        """Wait until the cluster is whole. After a signal, the roll still waits if a container has just been
        replaced."""
        deadline = time.monotonic() + self._timeout_s
        inspected = time.monotonic()
        while not (is_first and self.ends):
            health = {each.name: self._engine.health(each) for each in self._engine.containers(SERVICES)}
            reasons = not_whole(health, self._ask("doctor"))
            if not reasons:
                return
            now = time.monotonic()
            if now > deadline:
                raise RollError(f"{so_far}; the cluster is not whole: {'; '.join(reasons)}")
            if now - inspected > TELL_S:
                inspected = now
                tell(f"  waiting: {'; '.join(reasons)}")
            time.sleep(LOOK_S)

    def _leader(self) -> int | None:
        status = self._ask("quorum", "status")
        return None if status is None else int(status["leader_id"])

    def _ask(self, *arguments: str) -> Json | None:
        """Run a command of `headrace` in the container of any healthy broker; None if no broker is healthy."""
        brokers = [each for each in self._engine.containers(["broker"]) if self._engine.health(each) == "healthy"]
        return self._engine.ask(brokers[0].name, *arguments) if brokers else None


def tell(line: str) -> None:
    """Print a line. The roll goes on if the reader of the output has gone, or if a signal interrupts another print."""
    with contextlib.suppress(OSError, RuntimeError):
        print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="roll.py", description="Replace the stack's containers one by one, by the current compose file."
    )
    parser.add_argument(
        "services", nargs="*", metavar="SERVICE", help=f"replace only these services, of {', '.join(SERVICES)}"
    )
    parser.add_argument("--all", action="store_true", help="also replace unchanged containers: a rolling restart")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="seconds that one container may take (300)"
    )
    given = parser.parse_args(arguments)
    if unknown := [each for each in given.services if each not in SERVICES]:
        parser.error(f"{', '.join(unknown)}: the services are {', '.join(SERVICES)}")
    try:
        roll = Roll(Engine(), timeout_s=given.timeout)
        with _ends_between_two(roll), _alone():
            began = time.monotonic()
            count = roll.run([each for each in SERVICES if each in (given.services or SERVICES)], everything=given.all)
    except RollError as error:
        tell(f"roll: {error}")
        return 1
    print(f"replaced {count} containers in {time.monotonic() - began:.1f} s")
    return 130 if roll.ends else 0


@contextlib.contextmanager
def _ends_between_two(roll: Roll) -> Any:
    def on_signal(number: int, frame: object) -> None:
        is_news, roll.ends = not roll.ends, True
        if is_news:
            tell("roll: ending as soon as the present container serves and the cluster is whole")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # (under nohup, SIGHUP stays ignored)
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _alone() -> Any:
    """Hold the lock by which only one roll at a time runs in a directory."""
    here = os.open(".", os.O_RDONLY)
    try:
        fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RollError("another roll is running in this directory") from None
    finally:
        os.close(here)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
