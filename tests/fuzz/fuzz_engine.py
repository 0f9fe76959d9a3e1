"""The fuzzer has targets, a structure-aware mutator, limits of time and memory, and a minimizer. A target is a function
of bytes. A target returns, or raises AssertionError if bad input was accepted or served, or if data was lost or
changed. Any other exception is a crash, because a target catches HeadraceError where that is a correct answer. A target
names the ``Fix`` that makes mutated bytes plausible again, for example with a valid CRC. Without a fix, mutated inputs
fail at the checksum. This module measures no coverage. ``run_fuzz.py --atheris`` measures the coverage, with the
targets, the mutator and the corpus of this module.
"""

from __future__ import annotations

import hashlib
import logging
import random
import resource
import signal
import struct
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path(__file__).resolve().parents[2] / "build" / "fuzz"

#: The limits of time and memory growth for one input: far above what an input needs on a busy machine.
SECONDS_MAX = 10.0
GROWTH_BYTES_MAX = 256 << 20
INPUT_BYTES_MAX = 1 << 16

Run = Callable[[bytes], None]
Fix = Callable[[bytes, random.Random], bytes]

_INTERESTING = (0, 1, 2, 7, 8, 16, 49, 60, 61, 62, 127, 128, 255, 256, 4095, 4096, 32767, 32768, 65535, 65536)
_INTERESTING += (2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Target:
    """``seeds`` are the first inputs, together with those of the corpus. The module's docstring explains ``fix``."""

    name: str
    run: Run
    seeds: Callable[[], Sequence[bytes]]
    fix: Fix | None = None


class TooSlow(BaseException):
    """An input took more than SECONDS_MAX. The class is a BaseException, so no ``except Exception`` of the tested code
    catches it."""


class Failure(AssertionError):
    """A target failed. The message names the input, and the command that runs this input again."""


# ---------------------------------------------------------------------------------------------- mutation


@dataclass
class Mutator:
    """Makes a new input from the inputs of a pool. All random choices use ``rng``."""

    rng: random.Random
    pool: list[bytes]
    fix: Fix | None = None
    _operations: tuple[Callable[[bytearray], None], ...] = field(init=False)

    def __post_init__(self) -> None:
        self._operations = (
            self._flip,
            self._flip,
            self._set_byte,
            self._set_integer,
            self._set_integer,
            self._truncate,
            self._extend,
            self._remove,
            self._repeat,
            self._insert,
            self._zero,
            self._splice,
        )

    def next(self) -> bytes:
        """A new input."""
        return self.mutate(self.rng.choice(self.pool))

    def mutate(self, data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 6))):
            self.rng.choice(self._operations)(out)
        made = bytes(out[:INPUT_BYTES_MAX])
        if self.fix is not None and self.rng.random() < 0.8:
            made = self.fix(made, self.rng)
        return made

    def _at(self, out: bytearray, room: int = 1) -> int:
        return self.rng.randrange(max(len(out) - room + 1, 1))

    def _flip(self, out: bytearray) -> None:
        if out:
            out[self._at(out)] ^= 1 << self.rng.randrange(8)

    def _set_byte(self, out: bytearray) -> None:
        if out:
            out[self._at(out)] = self.rng.choice((0, 1, 0x7F, 0x80, 0xFF, self.rng.randrange(256)))

    def _set_integer(self, out: bytearray) -> None:
        size = self.rng.choice((1, 2, 4, 4, 8, 8))
        if len(out) < size:
            return
        at = self._at(out, size)
        now = int.from_bytes(out[at : at + size], "big")
        value = self.rng.choice((self.rng.choice(_INTERESTING), now + self.rng.randrange(-9, 10), -now, now << 1))
        out[at : at + size] = (value % (1 << (8 * size))).to_bytes(size, "big")

    def _truncate(self, out: bytearray) -> None:
        del out[self._at(out) :]

    def _extend(self, out: bytearray) -> None:
        out += self.rng.choice((bytes(self.rng.randrange(1, 200)), self.rng.randbytes(self.rng.randrange(1, 100))))

    def _remove(self, out: bytearray) -> None:
        at = self._at(out)
        del out[at : at + self.rng.choice((1, 2, 4, 8, 61, self.rng.randrange(1, 300)))]

    def _repeat(self, out: bytearray) -> None:
        at = self._at(out)
        out[at:at] = out[at : at + self.rng.randrange(1, 300)]

    def _insert(self, out: bytearray) -> None:
        at = self._at(out)
        out[at:at] = self.rng.randbytes(self.rng.choice((1, 1, 2, 4, 8, 20)))

    def _zero(self, out: bytearray) -> None:
        at = self._at(out)
        size = min(self.rng.choice((4, 8, 64, 4096)), len(out) - at)
        out[at : at + size] = bytes(size)

    def _splice(self, out: bytearray) -> None:
        other = self.rng.choice(self.pool)
        if other:
            start = self.rng.randrange(len(other))
            at = self._at(out)
            out[at:] = other[start:] if self.rng.random() < 0.5 else other[start:] + bytes(out[at:])


# ---------------------------------------------------------------------------------------------- running


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def too_slow(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds:.0f} s")

    before, timer = signal.signal(signal.SIGALRM, too_slow), signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # pytest-timeout's


def peak_bytes() -> int:
    """The peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check(target: Target, data: bytes) -> BaseException | None:
    """Run one input with the limits of time and memory. Return the exception that the target raised, AssertionError for
    too much memory, or None."""
    before, quiet = peak_bytes(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # damage is logged each time
    try:
        with _alarm(SECONDS_MAX):
            target.run(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it was found
        return error
    finally:
        logging.disable(quiet)
    if (grown := peak_bytes() - before) > GROWTH_BYTES_MAX:
        return AssertionError(f"{len(data)} bytes made the process grow by {grown >> 20} MiB")
    return None


def burst(target: Target, seed: int, *, seconds: float = 1e9, inputs_max: int = 1 << 60) -> int:
    """Run mutated inputs until the time or the count is used up, and return their number. On a failure, save the
    minimized input and raise Failure with it."""
    rng = random.Random(f"{target.name}:{seed}")
    mutator = Mutator(rng, pool(target), target.fix)
    end, done = time.monotonic() + seconds, 0
    while done < inputs_max and time.monotonic() < end:
        data = mutator.next()
        error = check(target, data)
        done += 1
        if error is not None:
            raise report(target, data, error, f"seed {seed}, input {done}")
    return done


def report(target: Target, data: bytes, error: BaseException, how: str) -> Failure:
    """Minimize the input, save it, and print how to run it again."""
    small = minimize(target, data, error)
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"{target.name}-{hashlib.sha256(small).hexdigest()[:12]}"
    path.write_bytes(small)
    where = "".join(traceback.format_tb(error.__traceback__)[-4:])
    return Failure(
        f"{target.name} ({how}): {type(error).__name__}: {str(error)[:700]}\n{where[-1500:]}\n"
        f"{len(small)} bytes (of {len(data)}), saved as {path}: {small[:200].hex()}\n"
        f"run it again: python -m tests.fuzz.run_fuzz {target.name} --input {path}\n"
        f"once understood, move it to tests/fuzz/corpus/{target.name}/what-it-was.bin"
    )


def minimize(target: Target, data: bytes, error: BaseException, *, seconds: float = 5.0) -> bytes:
    """A shorter input that fails in the same way (the same kind of error at the same line)."""
    if isinstance(error, TooSlow):
        return data
    wanted, end = _signature(error), time.monotonic() + seconds
    step = max(len(data) // 2, 1)
    while step and time.monotonic() < end:
        at = 0
        while at < len(data) and time.monotonic() < end:
            shorter = data[:at] + data[at + step :]
            found = check(target, shorter)
            if found is not None and _signature(found) == wanted:
                data = shorter
            else:
                at += step
        step //= 2
    return data


def _signature(error: BaseException) -> tuple[object, ...]:
    frames = traceback.extract_tb(error.__traceback__)
    return (type(error), *((frames[-1].filename, frames[-1].lineno) if frames else ()))


# ---------------------------------------------------------------------------------------------- corpus


def corpus_files(name: str) -> list[Path]:
    """The saved inputs of a target, by name."""
    directory = CORPUS / name
    return sorted(path for path in directory.iterdir() if path.is_file()) if directory.is_dir() else []


def pool(target: Target) -> list[bytes]:
    """The inputs with which mutation begins. The list of first inputs is never empty."""
    return [*target.seeds(), *(path.read_bytes() for path in corpus_files(target.name)), b""]


# ---------------------------------------------------------------------------------------------- reading an input


class Reader:
    """Splits an input into choices. When the bytes run out, all further choices are zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def integer(self, size: int) -> int:
        return int.from_bytes(self.bytes(size).ljust(size, b"\0"), "big")

    def below(self, limit: int) -> int:
        """A number with 0 <= number < limit, from as many bytes as needed."""
        return self.integer((limit - 1).bit_length() // 8 + 1) % limit

    def chunk(self) -> bytes:
        """Bytes after their 16-bit length."""
        return self.bytes(self.integer(2))

    @property
    def rest(self) -> bytes:
        return self._data[self._at :]


def chunks(*parts: bytes) -> bytes:
    """Bytes in the form that ``Reader.chunk`` reads."""
    return b"".join(struct.pack(">H", len(part)) + part for part in parts)
