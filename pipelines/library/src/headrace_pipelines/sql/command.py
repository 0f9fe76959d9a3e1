"""``headrace-pipelines sql``: SQL over topics, at a prompt, from a file, or from a pipe."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_core.errors import HeadraceError, InvalidArgumentError

from ..access import Access, access_of
from ..access import add_arguments as add_access
from ..errors import QueryFailedError
from ..places import local_master, whole
from ..runs import recorded
from ..stopping import EXIT_CODE, Stop
from .faults import Source
from .naming import ROWS_MAX

if TYPE_CHECKING:
    from .session import Session

ABOUT = "SQL over topics: a prompt, -e STATEMENT, -f FILE, or statements from a pipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``sql``."""
    add_access(parser)
    parser.add_argument("--registry", metavar="URL", help="schema registry of tables with format = 'avro'")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=Path("build/pipelines/sql"),
        help="directory of the tables' declarations, the continuous queries and the history (%(default)s)",
    )  # fmt: skip
    given = parser.add_mutually_exclusive_group()
    given.add_argument("-e", "--execute", metavar="STATEMENTS", help="run these statements, and end")
    given.add_argument("-f", "--file", type=Path, metavar="FILE", help="run the statements of a file, and end")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="format of rows")
    parser.add_argument(
        "--rows-max",
        type=_rows_max,
        default=1_000,
        metavar="N",
        help="maximum number of rows of a SELECT (%(default)s)",
    )
    parser.add_argument(
        "--serve", action="store_true", help="run the continuous queries until SIGTERM or Ctrl-C, after the statements"
    )
    parser.add_argument(
        "--master", type=local_master, default="local[2]", metavar="URL",
        help="Spark's master on this machine: local[N], or local-cluster[N,CORES,MB] (default %(default)s)",
    )  # fmt: skip


def _rows_max(text: str) -> int:
    value = whole(text)
    if value > ROWS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: must be {ROWS_MAX} or less")
    return value


def main(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code: 0, or 1 when a statement has failed."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    stop = Stop()
    stop.listen()
    out: Path = arguments.out.resolve()
    with recorded(out, "sql", how_to_stop="end that shell (Ctrl-D, or SIGTERM for --serve)") as ends:
        try:
            code = _run(arguments, out, stop)
        except HeadraceError as error:
            print(error.message, file=sys.stderr, flush=True)
            return 1
        ends("done" if code == 0 else "stopped")
        return code


def _run(arguments: argparse.Namespace, out: Path, stop: Stop) -> int:
    from ..local_spark import local_spark
    from ..runs import serving
    from .engine import Engine
    from .session import Session
    from .shell import Shell, interactive

    access = access_of(arguments)
    check_cluster(access)
    serving(out, access.servers)
    with local_spark("headrace sql", master=arguments.master) as spark:
        spark.sparkContext.setLogLevel("OFF")
        # Spark's own handler of SIGINT would also cancel the jobs of the continuous queries.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        session = Session(spark, access, out, arguments.registry)
        session.settings["rows.max"] = str(arguments.rows_max)
        try:
            for fault in session.resume():
                print(fault, file=sys.stderr, flush=True)
            engine = Engine(session)
            source = source_of(arguments)
            if source is not None:
                Shell(engine, session, arguments.output).run(source)
            elif not arguments.serve:
                _greet(access.servers)
                interactive(engine, session, out / "history", arguments.output)
            return _serve(session, stop) if arguments.serve else 0
        finally:
            session.close()


def source_of(arguments: argparse.Namespace) -> Source | None:
    """The statements to run; None: ask at the prompt."""
    if arguments.execute is not None:
        return Source(arguments.execute, "-e")
    if arguments.file is not None:
        try:
            return Source(_text(arguments.file.read_bytes(), str(arguments.file)), str(arguments.file))
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {arguments.file}: {error}") from None
    if not sys.stdin.isatty() and not arguments.serve:
        return Source(_text(sys.stdin.buffer.read(), "stdin"), "stdin")
    return None


def _text(content: bytes, name: str) -> str:
    """The text of a file in UTF-8, in every locale; a byte order mark is left out. Raises InvalidArgumentError."""
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidArgumentError(
            f"{name}:{line}: the text is not UTF-8: {error.reason} at byte {error.start}"
        ) from None


def check_cluster(access: Access) -> None:
    """Send one request to the cluster before Spark starts, because Spark's start takes seconds. Raises
    HeadraceError."""
    from headrace import Admin
    from headrace_core.errors import BootstrapError

    with Admin(access.admin() | {"default.api.timeout.ms": "10000"}) as admin:
        try:
            admin.list_topics()
        except BootstrapError as error:
            raise BootstrapError(
                f"{error.message}\nStart a cluster with `headrace up --data ./data -d`, or give --bootstrap-servers "
                "HOST:PORT"
            ) from None


def _greet(servers: str) -> None:
    print(
        f"Headrace SQL on {servers}. A statement ends with ; and `help` shows examples. `exit` ends the shell.",
        file=sys.stderr,
    )


def _serve(session: Session, stop: Stop) -> int:
    queries = list(session.catalog.queries)
    print(f"running: {', '.join(queries) or 'no query'}", file=sys.stderr, flush=True)
    failures = Failures(queries, session.continuous.check)
    with stop.after_batch():
        while not stop.wait(0.5):
            for failure in failures.new():
                print(failure, file=sys.stderr, flush=True)
            if failures.are_all:
                raise QueryFailedError(
                    "all continuous queries have failed; run --serve again: each query continues at its checkpoint"
                )
    return EXIT_CODE


class Failures:
    """The failures of queries, each once. ``check`` raises QueryFailedError for a query that has failed."""

    def __init__(self, queries: Sequence[str], check: Callable[[str], None]) -> None:
        self._running, self._check = list(queries), check
        self.are_all = False

    def new(self) -> list[str]:
        """The messages of the queries that have failed since the last call."""
        found = {}
        for query in self._running:
            try:
                self._check(query)
            except QueryFailedError as error:
                found[query] = error.message
        self._running = [query for query in self._running if query not in found]
        self.are_all = self.are_all or (bool(found) and not self._running)
        return list(found.values())
