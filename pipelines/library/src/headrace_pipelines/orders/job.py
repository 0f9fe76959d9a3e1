"""``headrace-pipelines run orders``: two handlers, a live projector and a rebuild, each in its own process; then the
check."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

from headrace import Admin, TopicPartition

from ..access import Access, given_access
from ..errors import PipelineFailedError, StoppedError
from ..members import Member
from ..outcome import Outcome
from ..places import Places, add_cluster_flags, cluster_of, positive, whole
from ..runs import prepared, serving
from ..show import Meter, Show
from ..stopping import Stop
from . import pictures, schema
from .database import Database, driver_errors
from .processes import REBUILT, member
from .projecting import Look, Positions
from .traffic import Traffic, commands
from .truth import differences, truth

#: A bad command gets a reply and does not become a dead letter, because its sender waits for the reply.
SOURCES = ()

PARTITIONS, HANDLERS = 6, 2
ORDERS, RATE, REPEAT_EVERY, SEED = 3_000, 800.0, 25, 1
#: Seconds between two checks of the processes and the positions.
LOOK_S = 0.1
#: Longest time without progress after the last command was sent.
STALL_S = 180.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run orders``."""
    add_cluster_flags(parser, "orders.*")
    parser.add_argument(
        "--database", metavar="URL",
        help="the tables' database: sqlite:///PATH or postgresql://USER@HOST/NAME (default: DIR/orders.db); the run "
        "deletes the rows that an earlier run left there",
    )  # fmt: skip
    parser.add_argument(
        "--orders", type=_some, default=ORDERS, metavar="N", help="number of orders (default %(default)s)"
    )
    parser.add_argument(
        "--rate", type=positive, default=RATE, metavar="X", help="commands per second (default %(default)g)"
    )
    parser.add_argument(
        "--handlers", type=_some, default=HANDLERS, metavar="N", help="processes that handle commands (%(default)s)"
    )
    parser.add_argument(
        "--repeat-every", type=whole, default=REPEAT_EVERY, metavar="N",
        help="send every N-th command twice; the results stay the same (default %(default)s; 0: none)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole, default=SEED, metavar="N", help="seed of the commands (default %(default)s)"
    )


def _some(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text}: must be from 1 to 1,000,000")
    return value


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    given, places = given_access(arguments), Places(out)
    continued = places.begin(show, "logs", "orders.db", "orders.db-wal", "orders.db-shm")
    url = arguments.database or f"sqlite:///{out / 'orders.db'}"
    records = list(commands(arguments.orders, arguments.repeat_every, arguments.seed))
    try:
        with cluster_of(given, places, show) as access, Database(url) as database:
            serving(out, access.servers)
            if not continued:
                _create_topics(access)
                database.clear()
                prepared(out)
            # A continued run sends all commands again: the handlers recognize the commands that they have handled.
            job = Job(access, database, places, show, stop, Traffic(access, records, arguments.rate))
            figures = job.stream(len(records), arguments.handlers)
            show.step("checking every row against the commands")
            expected = truth(access)
            if wrong := differences(expected, access, database):
                raise PipelineFailedError("; ".join(wrong))
            outcome = Outcome(_summary(expected, database, figures), figures)
            show.note(f"picture: {pictures.draw(job.looks, job.rebuilt(), outcome.summary, places.root)}")
    except driver_errors() as error:
        raise PipelineFailedError(f"the database of the tables failed: {error}") from error
    outcome.details.update(continued=continued, seconds=round(time.perf_counter() - began, 3), database=url)
    show.step("done")
    return outcome


def _create_topics(access: Access) -> None:
    with Admin(access.admin()) as admin:
        if old := sorted(set(schema.TOPICS) & set(admin.list_topics())):
            admin.delete_topics(old)
        if schema.GROUP in {group.group_id for group in admin.list_groups()}:
            admin.delete_groups([schema.GROUP])
        admin.create_topics(schema.topics(PARTITIONS))


class Job:
    """The processes of a run. ``looks``: the positions of the tables over time."""

    def __init__(
        self, access: Access, database: Database, places: Places, show: Show, stop: Stop, traffic: Traffic
    ) -> None:
        self._access, self._database, self._places = access, database, places
        self._show, self._stop, self._traffic = show, stop, traffic
        self.looks: list[Look] = []

    def stream(self, total: int, handlers: int) -> dict[str, Any]:
        """Send the commands through the processes until the tables have all events; returns figures."""
        names = [f"orders-handler-{number}" for number in range(1, handlers + 1)]
        self._show.step(f"starting {handlers} handlers and the projector of {self._database.url}")
        members = [member("handler", self._access, name, self._log(name)) for name in names]
        members.append(member("projector", self._access, self._database.url, self._log("projector")))
        try:
            with (
                self._stop.after_batch(),
                Admin(self._access.admin()) as admin,
                contextlib.closing(Positions(self._access, self._database)) as positions,
            ):
                self._show.step(f"sending {total:,} commands")
                self._traffic.start()
                with self._show.meter("commands", total) as meter:
                    rebuilt = self._follow(admin, positions, members, meter)
                self._traffic.result()
        finally:
            self._traffic.stop()
            for each in members:
                each.stop()
        deaths: Counter[str] = Counter()
        for each in members:
            deaths[each.role] += each.deaths
        return {"deaths": dict(+deaths), "generation": rebuilt, "commands": total}

    def _log(self, name: str) -> Path:
        return self._places.root / "logs" / f"{name}.log"

    def _follow(self, admin: Admin, positions: Positions, members: list[Member], meter: Meter) -> int:
        """Watch the run until it is complete; start the rebuild after a third of the commands. Returns the last
        generation."""
        rebuild: Member | None = None
        before, changed_s = (-1, -1, -1), time.monotonic()
        while True:
            is_sent = not self._traffic.is_alive()
            if is_sent:
                self._traffic.result()
            is_rebuilt = rebuild is not None and rebuild.exit_code == 0
            done = _handled(admin)
            is_all = is_sent and done >= _sent(admin)
            now = positions.look()
            self.looks.append(now)
            meter.at(min(done, meter.total), self._note(now))
            if rebuild is None and done >= meter.total // 3:
                self._show.step("rebuilding all tables beside the live ones")
                log = self._log("rebuild")
                rebuild = member("rebuild", self._access, self._database.url, log)
                members.append(rebuild)
            for each in members:
                if each is not rebuild or each.exit_code != 0:
                    each.look()
            if is_all and is_rebuilt and now.generation is not None and not now.behind:
                return now.generation
            if self._stop.is_asked:
                raise StoppedError({"handled": done, "behind": now.behind})
            progress = (done, now.live, len(self.rebuilt()))
            if progress != before:
                before, changed_s = progress, time.monotonic()
            elif is_sent and time.monotonic() - changed_s > STALL_S:
                raise PipelineFailedError(f"no progress for {STALL_S:g} s: {now}; see {self._places.root / 'logs'}")
            self._stop.wait(LOOK_S)

    def _note(self, now: Look) -> str:
        return f"tables {now.behind:,} events behind, generation {now.generation}"

    def rebuilt(self) -> list[tuple[float, int]]:
        """The progress that the rebuild has printed: pairs of a time (seconds since 1970) and the sum of the rebuild's
        positions at this time."""
        log = self._log("rebuild")
        lines = (line.split() for line in (log.read_text(errors="replace") if log.exists() else "").splitlines())
        said = [(float(words[1]), int(words[2])) for words in lines if words[:1] == [REBUILT] and len(words) == 3]
        began_s = self.looks[0].at_s if self.looks else 0.0
        return [(at_s, position) for at_s, position in said if at_s >= began_s]  # skips lines of earlier runs


def _handled(admin: Admin) -> int:
    """The number of commands that the group has handled: the sum of the committed offsets, because the topic has no
    markers and no gaps."""
    return sum(each.offset for each in admin.list_group_offsets(schema.GROUP).values() if each is not None)


def _sent(admin: Admin) -> int:
    """The number of records in the topic of the commands."""
    parts = [TopicPartition(schema.COMMANDS, part) for part in range(PARTITIONS)]
    return sum(each.offset for each in admin.list_offsets(dict.fromkeys(parts, "latest")).values())


def _summary(expected: Any, database: Database, figures: dict[str, Any]) -> dict[str, Any]:
    with database.reading():
        states: dict[str, int] = dict(database.rows("SELECT state, COUNT(*) FROM orders GROUP BY state ORDER BY state"))
    return {
        "orders": len(expected.orders),
        "events": expected.events,
        "by_state": {state: int(count) for state, count in states.items()},
        "replies": dict(sorted((+expected.outcomes).items())),
        "paid_cents": sum(paid for _, paid, _ in expected.days.values()),
        "returned_cents": sum(returned for _, _, returned in expected.days.values()),
        "generation": figures["generation"],
    }
