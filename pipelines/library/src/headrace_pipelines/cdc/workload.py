"""The tables of the run, and the load on them: pgbench, with scripts that insert, update, delete and change keys.

Two of three transactions belong to a bank (pgbench's own tables, after TPC-B). The other transactions change orders: an
upsert, an update, a delete, and a changed primary key. Some transactions on orders delete and insert the same key, or
roll an insert back. After ``add_column``, the column ``note`` of the orders exists, and a further script writes it.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from ..errors import PipelineFailedError
from .postgres import Postgres

#: Prefix of the topics: Debezium's ``topic.prefix``.
PREFIX = "shop"
#: The primary key of each table.
KEYS = {
    "public.orders": ("id",),
    "public.pgbench_accounts": ("aid",),
    "public.pgbench_branches": ("bid",),
    "public.pgbench_history": ("hid",),
    "public.pgbench_tellers": ("tid",),
}
TABLES = tuple(KEYS)
TOPICS = tuple(f"{PREFIX}.{table}" for table in TABLES)
#: A table with one row, the marker. When Debezium has sent an update of the marker, it has sent all changes that were
#: committed before this update.
MARKER = "public.cdc_marker"
ACCOUNTS, ORDERS = 2_000, 1_000
_END_S = 60.0
_CLIENTS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'"

_ORDERS = f"""
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer text NOT NULL, amount numeric(10, 2), placed timestamptz DEFAULT now(), due date,
  changed timestamp, weight double precision, express boolean);
CREATE SEQUENCE order_ids START {10 * ORDERS};
INSERT INTO orders SELECT id, 'customer ' || id % 50, id * 1.25, now(), '2026-01-01', NULL, id / 3.0, id % 2 = 0
  FROM generate_series(1, {ORDERS}) AS id;
DELETE FROM pgbench_accounts WHERE aid > {ACCOUNTS};
ALTER TABLE pgbench_history ADD COLUMN hid bigserial PRIMARY KEY;
CREATE TABLE cdc_marker (id int PRIMARY KEY, at bigint NOT NULL);
INSERT INTO cdc_marker VALUES (1, 0);
"""
_BANK = f"""
\\set aid random(1, {ACCOUNTS})
\\set tid random(1, 10)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, 1, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""
_CHANGE_ORDERS = f"""
\\set id random(1, {2 * ORDERS})
\\set what random(1, 100)
\\set cents random(-1000, 99999)
\\if :what <= 30
INSERT INTO orders (id, customer, amount, due, express) VALUES (:id, 'new', :cents / 100.0, '2026-02-03', true)
  ON CONFLICT (id) DO UPDATE SET customer = 'again', amount = excluded.amount;
\\elif :what <= 55
UPDATE orders SET amount = :cents / 100.0, changed = clock_timestamp(), placed = NULL WHERE id = :id;
\\elif :what <= 75
DELETE FROM orders WHERE id = :id;
\\elif :what <= 90
UPDATE orders SET id = nextval('order_ids') WHERE id = :id;
\\elif :what <= 95
BEGIN;
DELETE FROM orders WHERE id = :id;
INSERT INTO orders (id, customer) VALUES (:id, '') ON CONFLICT (id) DO NOTHING;
END;
\\else
BEGIN;
INSERT INTO orders (id, customer) VALUES (nextval('order_ids'), 'never');
ROLLBACK;
\\endif
"""
_WRITE_NOTES = f"""
\\set id random(1, {2 * ORDERS})
INSERT INTO orders (id, customer, note) VALUES (:id, 'noted', 'note of ' || :id)
  ON CONFLICT (id) DO UPDATE SET note = excluded.note;
"""


class Workload:
    """pgbench on a server. ``directory`` gets the scripts and the output. ``rate``: transactions a second."""

    def __init__(self, postgres: Postgres, directory: Path, rate: float) -> None:
        self._postgres, self._directory, self._rate = postgres, directory, rate
        self._running: list[subprocess.Popen[bytes]] = []
        self.log = directory / "pgbench.log"
        for name, script in (("bank", _BANK), ("orders", _CHANGE_ORDERS), ("notes", _WRITE_NOTES)):
            (directory / f"{name}.sql").write_text(script)

    def create_tables(self) -> None:
        """Create the tables with their first rows."""
        self._postgres.run_program("pgbench", "-i", "-q")
        self._postgres.execute(_ORDERS)

    def start(self, seconds: int) -> None:
        """Start the load, which ends after ``seconds``."""
        self._pgbench(seconds, self._rate, "bank@1", "orders@2")

    def add_column(self, seconds: int) -> None:
        """Add the column ``note`` to the orders while the load continues, and write it for ``seconds``."""
        self._postgres.execute("ALTER TABLE orders ADD COLUMN note text")
        self._pgbench(seconds, self._rate / 5, "notes@1")

    def mark(self) -> int:
        """Update the marker after the load; returns the marker's new value."""
        return int(self._postgres.execute("UPDATE cdc_marker SET at = at + 1 RETURNING at"))

    def wait(self, within_s: float) -> None:
        """Wait until the load has ended. Raises PipelineFailedError if pgbench fails, or is not done in time."""
        deadline = time.monotonic() + within_s + _END_S
        for process in self._running:
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                said = self.log.read_text(errors="replace")[-1_000:]
                raise PipelineFailedError(f"pgbench ended with {code}; its output: {said}")

    def stop(self) -> None:
        """End the load now. When the call returns, no transaction of the load is open."""
        for process in self._running:
            process.kill()
            process.wait()
        deadline = time.monotonic() + _END_S
        while self._postgres.execute(_CLIENTS) != "0":
            if time.monotonic() > deadline:
                raise PipelineFailedError(f"PostgreSQL still runs transactions of pgbench after {_END_S:.0f} s")
            time.sleep(0.05)

    def _pgbench(self, seconds: int, rate: float, *scripts: str) -> None:
        flags = ["-n", "-c", "2", "-T", str(seconds), "-R", f"{rate:g}"]
        for script in scripts:
            flags += ["-f", f"{self._directory / script.partition('@')[0]}.sql@{script.partition('@')[2]}"]
        self._running.append(self._postgres.start_program("pgbench", flags, self.log))
