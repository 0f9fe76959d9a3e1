"""Random rotations, kills and failed transactions: ``headrace ship`` sends each line once, and in order.

The shipper is the real one, on real files. Its cluster is a dictionary, and its clock is simulated. Whatever the
program and logrotate do to the files, they do between any two system calls of the shipper.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import types
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UnknownOutcomeError
from headrace_tools.ship import shipper, tail
from headrace_tools.ship.positions import TOPIC, Stored
from headrace_tools.ship.shipper import Settings, Shipper

HISTORIES = 150
#: The kernel's clock for modification times advances in steps.
TICK_MS = 4
SYSTEM_CALLS = ("open", "pread", "fstat", "stat", "scandir")


class Killed(BaseException):
    """``kill -9``."""


class Log:
    """A program that writes numbered lines to a file, and logrotate, which rotates the file step by step."""

    def __init__(self, world: World, path: Path, *, copies: bool, is_new: bool = False) -> None:
        self.world, self.path, self.copies = world, path, copies
        self.lines = self.rotations = 0
        self.shifts = world.random.random() < 0.5  # a.log.1 becomes a.log.2, as logrotate does without ``dateext``
        self.opens_late = world.random.random() < 0.5  # the program writes to a.log.1 after logrotate made a.log
        self._rotation: Iterator[None] | None = None
        self._is_copied = False
        self._written_to = path  # the program's open file
        if not is_new:
            self._make()

    def _make(self) -> None:
        self.path.write_bytes(b"")
        self._touch(self.path)

    def step(self) -> None:
        choice = self.world.random.random()
        if self.rotations == self.lines == 0 and not self.path.exists():
            if self.world.is_followed and choice < 0.1:
                self.world.now_ms += TICK_MS  # a new shipper ships no older files
                self._make()
                self._write()
        elif self._rotation is not None and (choice < 0.5 or self._is_copied):
            self._rotation = None if next(self._rotation, self) is self else self._rotation
        elif self._rotation is None and choice < 0.2 and self.world.is_followed:
            self._rotation = self._copy_and_truncate() if self.copies else self._rename()
        elif choice < 0.25:
            self._remove_shipped()
        else:
            self._write()

    def end(self) -> None:
        if not self.path.exists() and not self.rotations:
            self._make()
        for _ in self._rotation or ():
            pass

    def _write(self) -> None:
        name, count = self.path.name.encode(), self.world.random.choice((1, 1, 3, 100, 300))
        with self._written_to.open("ab") as file:
            file.write(b"".join(b"%b %06d\n" % (name, number) for number in range(self.lines, self.lines + count)))
        self.lines += count
        self._touch(self._written_to)
        self.world.note("wrote", self._written_to.name, self.lines)

    def _rotated(self) -> Path:
        self.rotations += 1
        if not self.shifts:
            return self.path.with_name(f"{self.path.name}.{self.rotations:03}")
        for number in range(self.rotations, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            if older.exists():
                older.rename(self.path.with_name(f"{self.path.name}.{number + 1}"))
        return self.path.with_name(f"{self.path.name}.1")

    def _copy_and_truncate(self) -> Iterator[None]:
        self.world.now_ms += TICK_MS  # two copies are not made in one tick
        copy = self._rotated()
        self._is_copied = True  # a line that is written between the copy and the truncation is lost
        content = self.path.read_bytes()
        for part in (b"", content[: len(content) // 2], content[len(content) // 2 :]):
            with copy.open("ab") as file:
                file.write(part)
            self._touch(copy)
            self.world.note("copied", copy.name, len(part))
            yield
        os.truncate(self.path, 0)
        self._touch(self.path)
        self._is_copied = False
        self.world.note("truncated")

    def _rename(self) -> Iterator[None]:
        renamed = self._rotated()
        self.path.rename(renamed)
        self._written_to = renamed
        self.world.note("renamed", renamed.name, renamed.stat().st_ino)
        yield
        # The order of two files is known only if their last writes are in different ticks.
        self.world.now_ms += TICK_MS
        self._make()
        self.world.note("made", self.path.name, self.path.stat().st_ino)
        if self.opens_late:
            yield
            self.world.now_ms += TICK_MS  # see above
        self._written_to = self.path

    def _remove_shipped(self) -> None:
        """Remove rotated files that are shipped, so that new files get their inode numbers."""
        shipped = len(self.world.shipped[str(self.path)])
        for path in self.path.parent.glob(f"{self.path.name}.*"):
            if path != self._written_to and self._rotation is None:
                lines = path.read_bytes().splitlines()
                if not lines or _number(lines[-1]) < shipped:
                    path.unlink()
                    self.world.note("removed", path.name)

    def _touch(self, path: Path) -> None:
        at_ns = self.world.now_ms // TICK_MS * TICK_MS * 1_000_000
        os.utime(path, ns=(at_ns, at_ns))


class World:
    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000_000
        self.trace: list[str] = []
        self.positions: dict[bytes, bytes] = {}
        self.shipped: dict[str, list[bytes]] = defaultdict(list)
        self.is_followed = False  # a file that is rotated before the shipper has a position of it is not shipped
        self.calls_left = -1  # system calls until the shipper is killed; below 0: quiet
        self.logs = [
            Log(self, directory / name, copies=self.random.random() < 0.7, is_new=name == "new.log")
            for name in ("a.log", "b.log", "new.log")
        ]
        self.settings = Settings(
            config={},
            producer={},
            topic="lines",
            paths=[str(directory / "*.log")] if self.random.random() < 0.5 else [str(log.path) for log in self.logs],
            name="ship",
            host="h",
            batch_bytes=self.random.choice((500, 8 << 20)),
        )

    def note(self, *what: object) -> None:
        self.trace.append(f"{self.now_ms % 1_000_000} {' '.join(map(str, what))}")

    def before_call(self) -> None:
        if self.calls_left < 0:
            return
        self.calls_left -= 1
        if self.calls_left < 0:
            self.note("killed")
            raise Killed
        if self.random.random() < 0.1:
            self.pass_time()

    def pass_time(self) -> None:
        for _ in range(self.random.choice((0, 1, 1, 2, 5))):
            self.now_ms += self.random.choice((0, 1, 5, 60, 300))
            self.random.choice(self.logs).step()

    def run(self) -> None:
        """Run shippers one after another; all but the last are killed."""
        for _ in range(self.random.randint(1, 4)):
            self.calls_left = self.random.randint(50, 600)
            self.note("start")
            stop = Stop(self)
            try:
                Shipper(self.settings, stop, lambda _: None, self._on_open).run()
            except Killed:
                self.calls_left = -1
            self.now_ms += self.random.choice((1, 20, 2_000))
            self.pass_time()
        for log in self.logs:
            log.end()
        self.now_ms += 100
        self.note("last start")
        settings = Settings(**{name: getattr(self.settings, name) for name in self.settings.__slots__} | {"once": True})
        Shipper(settings, Stop(self), lambda _: None).run()

    def _on_open(self) -> None:
        self.is_followed = True

    def check(self) -> None:
        for log in self.logs:
            shipped = [_number(line) for line in self.shipped[str(log.path)]]
            assert shipped == list(range(log.lines)), f"{log.path.name}: {_difference(shipped, log.lines)}"


def _number(line: bytes) -> int:
    return int(line.partition(b" ")[2])


def _difference(shipped: list[int], lines: int) -> str:
    lost = sorted(set(range(lines)) - set(shipped))
    doubled = sorted(number for number in set(shipped) if shipped.count(number) > 1)
    disorder = next(((before, after) for before, after in pairwise(shipped) if before > after), None)
    return f"of {lines}, lost {len(lost)} {lost[:1]}, doubled {len(doubled)} {doubled[:1]}, out of order {disorder}"


def _shown(positions: dict[str, bytes | None]) -> str:
    """Each inode with the position that was stored for it."""
    found = {}
    for inode, value in positions.items():
        fields = json.loads(value or b"{}")
        found[inode] = [fields.get(name) for name in ("offset", "fingerprint_bytes", "at_ms")]
    return ", ".join(f"{inode}: {fields}" for inode, fields in found.items())


class Stop(threading.Event):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        self._world.now_ms += int(1_000 * (timeout or 0))
        if self._world.calls_left >= 0:
            self._world.pass_time()
        return False


class Calls:
    """The module ``os`` for the shipper, with the world's chance before each system call."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in SYSTEM_CALLS:
            return real

        def call(*given: Any, **named: Any) -> Any:
            self._world.before_call()
            return real(*given, **named)

        return call


class Cluster:
    """The shipper's producer: a transaction is committed or aborted, and its answer may be lost."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: list[tuple[str, bytes | None, bytes, list[tuple[str, bytes]]]] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._sent.clear()
        yield
        world = self._world
        is_hostile = world.calls_left >= 0 and self._sent
        choice = world.random.random() if is_hostile else 1.0
        if is_hostile:
            world.pass_time()
        if choice > 0.1:
            self._commit()
        if choice < 0.2:
            if world.random.random() < 0.5:
                world.note("killed while it committed" if choice > 0.1 else "killed before it committed")
                raise Killed
            world.note("no answer")
            raise UnknownOutcomeError("no answer")

    def describe_topics(self, names: list[str]) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(name=name, max_message_bytes=0) for name in names]

    def send(self, topic: str, *, value: bytes | None, key: bytes, headers: list[tuple[str, bytes]] = []) -> None:  # noqa: B006
        self._sent.append((topic, value, key, headers))

    def _commit(self) -> None:
        for topic, value, key, headers in self._sent:
            if topic == TOPIC and value is not None:
                self._world.positions[key] = value
            elif topic == TOPIC:
                self._world.positions.pop(key, None)
            else:
                assert value is not None
                self._world.shipped[dict(headers)["path"].decode()].append(value)
        if self._sent:
            positions = {
                key.rpartition(b":")[2].decode(): value
                for topic, value, key, _ in self._sent
                if topic == TOPIC and b"/pattern:" not in key
            }
            lines = sum(topic != TOPIC for topic, *_ in self._sent)
            self._world.note("committed", lines, "lines;", _shown(positions))

    def read_positions(self) -> Stored:
        found = Stored()
        for key, value in self._world.positions.items():
            owner, _, file = key.rpartition(b"/")
            assert owner.decode() == self._world.settings.name
            found.apply(file, value)
        return found


def play(seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    directory.mkdir()
    world = World(seed, directory)
    with monkeypatch.context() as patched:
        patched.setattr(tail, "os", Calls(world))
        clock = types.SimpleNamespace(monotonic=lambda: world.now_ms / 1_000, time_ns=lambda: world.now_ms * 1_000_000)
        patched.setattr(shipper, "time", clock)
        patched.setattr(shipper, "Admin", lambda *_: Cluster(world))
        patched.setattr(shipper, "Producer", lambda *_: Cluster(world))
        patched.setattr(shipper, "ensure_topic", lambda _: None)
        patched.setattr(shipper, "read_positions", lambda *_: Cluster(world).read_positions())
        world.run()
    shutil.rmtree(directory)
    return world


def test_each_line_is_sent_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    for seed in range(first, first + HISTORIES):
        world = play(seed, tmp_path / str(seed), monkeypatch)
        try:
            world.check()
        except AssertionError as error:
            pytest.fail("\n".join([f"history {seed}: {error}", *world.trace]))
