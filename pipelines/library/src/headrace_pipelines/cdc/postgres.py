"""A PostgreSQL server for one run: its own data directory, a free port on loopback, logical replication switched on.

    with Postgres(directory / "postgres.log") as postgres:
        postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        rows = postgres.read("SELECT * FROM orders", pa.schema({"id": pa.int32()}))

The server needs Debian's package ``postgresql``. PostgreSQL refuses to run as root, so a program of root starts the
server as the user ``postgres``. The data directory is in the system's temporary directory, which every user may enter,
and is deleted at the end. The server trusts every connection from loopback, so it is for tests and demonstrations only.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pyarrow as pa
from pyarrow import csv

from headrace_core.errors import InvalidArgumentError

from ..errors import PipelineFailedError

USER = DATABASE = "postgres"
HOST = "127.0.0.1"
_PROGRAMS = Path("/usr/lib/postgresql")
_START_S, _STOP_S, _STATEMENT_S = 60.0, 60.0, 120.0
#: fsync is off: after a crash of the machine the run is lost in any case, and a crash of the server alone loses no
#: data.
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_replication_slots": "4",
    "max_wal_senders": "4",
    "fsync": "off",
    "timezone": "UTC",
}


class Postgres:
    """A server that runs while the block lasts. ``log``: the file for the server's output."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._programs = programs()
        self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if not os.geteuid() else []
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self.port = 0

    def __enter__(self) -> Postgres:
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        try:
            if self._as_user:
                shutil.chown(self._directory, USER, USER)
            self._run(
                [*self._as_user, self._program("initdb"), "-D", self._data, "-U", USER, "-A", "trust", "-E", "UTF8"]
            )
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    @property
    def address(self) -> list[str]:
        """Flags of PostgreSQL's programs for this server."""
        return ["-h", HOST, "-p", str(self.port), "-U", USER]

    def execute(self, sql: str) -> str:
        """Run statements, in one transaction. Returns the rows of the last query: a line for each row, ``|`` between
        columns. Raises PipelineFailedError."""
        return self._psql("-A", "-t", "-1", "-c", sql).decode().strip()

    def read(self, query: str, schema: pa.Schema) -> pa.Table:
        """The rows of a query, with the columns and types of ``schema``."""
        text = self._psql("-c", f"COPY ({query}) TO STDOUT WITH (FORMAT csv, HEADER)")
        return csv.read_csv(
            io.BytesIO(text),
            convert_options=csv.ConvertOptions(
                column_types=schema,
                include_columns=schema.names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )

    def start_program(self, name: str, flags: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start one of PostgreSQL's programs, such as pgbench, against this server; its output goes to ``log``."""
        with log.open("ab") as output:
            command = ["setpriv", "--pdeathsig", "KILL", self._program(name), *self.address, *flags, DATABASE]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def run_program(self, name: str, *flags: str) -> None:
        """Run one of PostgreSQL's programs to its end. Raises PipelineFailedError."""
        self._run([self._program(name), *self.address, *flags, DATABASE])

    # -- the server

    @property
    def _data(self) -> str:
        assert self._directory is not None
        return str(self._directory / "data")

    def _program(self, name: str) -> str:
        return str(self._programs / name)

    def _start(self) -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            self.port = int(taken.getsockname()[1])
        settings = [each for name, value in _SETTINGS.items() for each in ("-c", f"{name}={value}")]
        server = [self._program("postgres"), "-D", self._data, "-p", str(self.port), *settings]
        # When this process ends, the kernel sends SIGINT to the server, which means a fast shutdown.
        command = [*(self._as_user or ["setpriv"]), "--pdeathsig", "INT", *server]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + _START_S
        ready = [self._program("pg_isready"), "-q", *self.address]
        while subprocess.run(ready, check=False, timeout=_START_S).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PipelineFailedError(
                    f"PostgreSQL does not serve on port {self.port} after {_START_S:.0f} s, or has ended; see "
                    f"{self._log}:\n{self._log.read_text(errors='replace')[-1_000:]}"
                )
            time.sleep(0.05)

    def _end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)  # an immediate shutdown, which ends the children as well
                self._process.wait(_STOP_S)
        if self._directory is not None:
            shutil.rmtree(self._directory)

    def _psql(self, *flags: str) -> bytes:
        options = ["-X", "-q", "-v", "ON_ERROR_STOP=1"]
        return self._run([self._program("psql"), *self.address, *options, *flags, DATABASE])

    def _run(self, command: Sequence[str]) -> bytes:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=_STATEMENT_S, cwd="/"
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise PipelineFailedError(f"{' '.join(command)} failed: {said}")
        return done.stdout


def programs() -> Path:
    """The directory of the newest installed version's programs. Raises InvalidArgumentError."""
    found = sorted(_PROGRAMS.glob("*/bin/postgres"), key=lambda path: float(path.parents[1].name))
    if not found:
        raise InvalidArgumentError(
            f"PostgreSQL's server is missing: {_PROGRAMS} has no version of it; install it (Debian: apt-get install "
            "postgresql)"
        )
    return found[-1].parent
