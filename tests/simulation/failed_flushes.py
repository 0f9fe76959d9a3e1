"""``make failed-flushes``: a flush fails, the node restarts, more records are acknowledged, the power fails; no
acknowledged record may be lost.

    python -m tests.simulation.failed_flushes --seeds 200 --seed 1          every programme, 200 seeds each
    python -m tests.simulation.failed_flushes --seed 17 --seeds 1 brokers   one again

There are four programmes: the storage of brokers and the storage of controllers alone, and both halves of the
simulator. Each seed forces four events in this order, and ``Seen`` confirms them. A flush fails with EIO, and some
pages are only in the page cache. The next process reads these pages. Records are acknowledged after the read. A power
loss drops pages that were not fsynced. A seed without one of these events proves nothing, and fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from headrace_controller.storage import SEGMENT_BYTES
from headrace_core.errors import HeadraceError
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.simulation import run as simulator
from tests.simulation.broker_plan import make_broker_plan
from tests.simulation.flush_watch import FlushWatch
from tests.simulation.sim_plan import Fault, Period, make_plan
from tests.worlds.log_world import ORDERS, TOPIC_ID, batch, formatted, open_directory, values_of
from tests.worlds.log_world import ROOT as DATA
from tests.worlds.storage_world import DIRECTORY, Voter, go_on, history, setting, some_entries

STORY = "flush_then_power"
_ATTEMPTS = 20


class Seen(NamedTuple):
    """The events that happened with a seed."""

    flush_failed: bool = False
    page_cache_read: bool = False
    power_lost: bool = False
    records_at_stake: int = 0

    @property
    def is_whole(self) -> bool:
        return self.flush_failed and self.page_cache_read and self.power_lost


class LostError(AssertionError):
    """An acknowledged record is lost, or another promise was broken."""


def _power_fails() -> None:
    raise SimulatedCrash("power fails before the flush")


# ---------------------------------------------------------------------------------------------- storage


def broker_storage(seed: int) -> Seen:
    """Run a log directory of a broker, one process after the other."""
    rng = random.Random(f"failed flushes, broker's storage {seed}")
    config = LogConfig(segment_bytes=rng.choice([20_000, 200_000]), index_interval_bytes=rng.choice([100, 4096]))
    fs = formatted()
    directory = open_directory(fs, config)
    log = directory.create(ORDERS, TOPIC_ID, config)
    sent: list[str] = []

    def append(count: int) -> None:
        for _ in range(count):
            sent.append(f"{len(sent)}")
            log.append(batch(sent[-1], pad=rng.choice([20, 900, 5_000, 12_000])), 0)

    for _ in range(rng.randrange(6)):
        append(rng.randrange(1, 4))
        log.flush()
        if rng.random() < 0.3:
            directory.write_recovery_points()
    acknowledged, watch = len(sent), FlushWatch(fs, f"{DATA}/{ORDERS}/", rng)
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(OSError):
            while not watch.has_failed:
                append(rng.randrange(1, 4))
                log.flush()
                acknowledged = len(sent)
        watch.process_ended()
        watch.stop()
        fs.crash(loss=Loss.NONE)
        log = _opened(fs, config, sent, acknowledged)
        if watch.is_at_stake and len(sent) >= watch.end_offset:
            break
        acknowledged, watch = len(sent), FlushWatch(fs, f"{DATA}/{ORDERS}/", rng)
    else:
        return Seen()
    for _ in range(rng.randrange(1, 4)):
        append(rng.randrange(1, 4))
        log.flush()
        acknowledged = len(sent)
    fs.on_operation = watch.look
    watch.fail_power(_power_fails)
    try:
        append(rng.randrange(1, 3))
        log.flush()
    except SimulatedCrash:
        fs.crash(rng, Loss.ALL)
    _opened(fs, config, sent, acknowledged)
    return Seen(True, True, watch.has_lost_power and watch.is_at_stake, watch.records_at_stake)


def _opened(fs: CrashingFileSystem, config: LogConfig, sent: list[str], acknowledged: int) -> PartitionLog:
    """Open the log in the next process: it must have all acknowledged records, and none that was not sent."""
    directory = open_directory(fs, config)
    if directory.quarantined:
        raise LostError(f"quarantined: {directory.quarantined}")
    try:
        found = values_of(directory.logs[ORDERS])
    except HeadraceError as error:
        raise LostError(f"{type(error).__name__}: {error}") from error
    if found != sent[: len(found)] or len(found) < acknowledged:
        raise LostError(f"{len(found)} records are there, {acknowledged} were acknowledged")
    del sent[len(found) :]
    return directory.logs[ORDERS]


def controller_storage(seed: int) -> Seen:
    """Run the metadata log of a voter, one process after the other."""
    rng = random.Random(f"failed flushes, controller's storage {seed}")
    voter = Voter.new()
    voter.append(history(rng, rng.randrange(1, 20)))

    def term() -> int:
        return voter.model.entries[-1].term + 1

    for _ in range(_ATTEMPTS):
        watch = FlushWatch(voter.fs, f"{DIRECTORY}/", rng)
        with contextlib.suppress(OSError):
            while not watch.has_failed:
                end = voter.model.end
                big = [setting(term(), end + number, rng.choice([50, 3_000, 9_000])) for number in range(3)]
                voter.append(rng.choice([big, some_entries(rng, end, term(), 6)]))
        watch.process_ended()
        watch.stop()
        voter.fs.crash(loss=Loss.NONE)
        voter = _next_voter(voter)
        if watch.is_at_stake and voter.model.end >= watch.end_offset:
            break
    else:
        return Seen()
    for _ in range(rng.randrange(1, 4)):
        voter.append(some_entries(rng, voter.model.end, term(), 3))
    voter.fs.on_operation = watch.look
    watch.fail_power(_power_fails)
    try:
        voter.append(some_entries(rng, voter.model.end, term(), 3))
    except SimulatedCrash:
        voter.fs.crash(rng, Loss.ALL)
    _next_voter(voter)
    return Seen(True, True, watch.has_lost_power and watch.is_at_stake, watch.records_at_stake)


def _next_voter(voter: Voter) -> Voter:
    try:
        return go_on(voter, voter.doing)
    except (AssertionError, HeadraceError) as error:
        raise LostError(f"{type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------------------------------- both halves


def brokers(seed: int) -> Seen:
    """Run three or four brokers with producers and consumers; the story is the only fault."""
    plan = replace(
        make_broker_plan(seed),
        unclean=False,
        min_insync=1,
        partitions=1,
        segment_bytes=random.Random(seed).choice([6_000, 20_000]),
        retention_bytes=None,
        deletes=False,
        compacts=False,
        periods=(Period(0.0, 6_500.0, False),),
        faults=(Fault(0, 500.0, STORY, 400.0, 0.5, seed),),
    )
    return _simulated(plan)


def controllers(seed: int) -> Seen:
    """Run one to five controllers; the story is the only fault."""
    plan = replace(
        make_plan(seed),
        rest_ms=150.0,  # a log whose batches often cross a page border
        segment_bytes=SEGMENT_BYTES,
        spread=1.0,
        snapshot_bytes=200_000,
        periods=(Period(0.0, 7_000.0, False),),
        faults=(Fault(0, 500.0, STORY, 400.0, 0.5, seed),),
    )
    return _simulated(plan)


def _simulated(plan: simulator.AnyPlan) -> Seen:
    world, failure = simulator.run_one(plan, past_exceptions=True)
    if failure is not None:
        raise LostError(f"{type(failure).__name__}: {failure}") from failure
    seen = world.coverage
    return Seen(
        seen["flush", "failed"] > 0,
        seen["flush", "page cache read"] > 0,
        seen["flush", "power lost"] > 0,
        seen["flush", "records at stake"],
    )


PROGRAMMES: dict[str, Callable[[int], Seen]] = {
    "broker-storage": broker_storage,
    "controller-storage": controller_storage,
    "brokers": brokers,
    "controllers": controllers,
}


# ---------------------------------------------------------------------------------------------- the command


def run_seed(work: tuple[str, int]) -> tuple[str, int, Seen, str]:
    """(programme, seed, the events that happened, the lost records)."""
    name, seed = work
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return name, seed, PROGRAMMES[name](seed), ""
    except LostError as error:
        return name, seed, Seen(), str(error)
    finally:
        logging.disable(before)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programmes", nargs="*", metavar="programme", help=f"of {', '.join(PROGRAMMES)}; all of them")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--mutant", default="", help="with this guard removed, so that seeds have to find a loss")
    given = parser.parse_args(argv)
    names = given.programmes or list(PROGRAMMES)
    if unknown := set(names) - set(PROGRAMMES):
        parser.error(f"no such programme: {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMMES)}")
    if given.mutant:
        mutant = simulator.MUTANTS[given.mutant].applied()
        mutant.__enter__()  # until this process ends, also in its child processes
    began, figures, wrong = time.monotonic(), [], 0
    work = [(name, seed) for name in names for seed in range(given.seed, given.seed + given.seeds)]
    found: dict[str, list[tuple[int, Seen, str]]] = {name: [] for name in names}
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), simulator.begin_worker) as pool:
        for name, seed, seen, lost in pool.imap(run_seed, work, 5):
            found[name].append((seed, seen, lost))
            if lost or not seen.is_whole:
                wrong += 1
                print(f"{name}: seed {seed}: {f'LOST: {lost}' if lost else f'too little happened: {seen}'}"[:300])
    for name, results in found.items():
        figure = {
            "programme": name,
            "seeds": len(results),
            "flush_failed": sum(seen.flush_failed for _, seen, _ in results),
            "page_cache_read": sum(seen.page_cache_read for _, seen, _ in results),
            "power_lost_afterwards": sum(seen.power_lost for _, seen, _ in results),
            "records_at_stake": sum(seen.records_at_stake for _, seen, _ in results),
            "seeds_with_a_loss": sum(bool(lost) for _, _, lost in results),
        }
        print(json.dumps(figure))
        figures.append(figure)
    print(json.dumps({"wrong": wrong, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
