"""``headrace-pipelines run scaling``: one scene after another on one cluster, and the check of each."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace import Admin, Consumer, NewTopic
from headrace_core.errors import InvalidArgumentError

from ..access import Access, given_access
from ..errors import PipelineFailedError
from ..local_spark import local_spark
from ..outcome import Outcome
from ..places import Places, add_run_flags, cluster_of, positive, whole
from ..runs import serving
from ..show import Show
from ..stopping import Stop
from ..topics import records_in_topic, replace_topics
from . import pictures, schema
from .beside import QUERY, TABLE, Beside
from .notes import read
from .playing import Played, Player, database_rows
from .processes import notes_of
from .scenes import NAMES, PARTITIONS, Scene, check_rate, scenes_of
from .truth import Found, Row, check, check_rows

#: No topic has dead letters, because the run is the only writer of its topics.
SOURCES = ()
RATE, SEED = 5_000.0, 1
FIRST = "one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run scaling``."""
    add_run_flags(parser, "scaling.*")
    parser.set_defaults(master="local[8]")  # so that the slow calls of eight tasks can wait at the same time
    parser.add_argument(
        "--scenes", type=_scenes, default=",".join(NAMES), metavar="NAME,...",
        help=f"scenes to run, in their order (default: all of {', '.join(NAMES)})",
    )  # fmt: skip
    parser.add_argument("--rate", type=positive, default=RATE, metavar="X", help="records per second (%(default)g)")
    parser.add_argument("--without-spark", action="store_true", help="do not run a Spark job during the first scene")
    parser.add_argument(
        "--seed", type=whole, default=SEED, metavar="N", help="seed of the records (default %(default)s)"
    )


def _scenes(text: str) -> str:
    try:
        return ",".join(scene.name for scene in scenes_of(text))
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the scenes. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    given, places, scenes = given_access(arguments), Places(out), scenes_of(arguments.scenes)
    check_rate(arguments.rate, scenes)
    # The run never calls ``prepared``, so after a kill the same command starts from the beginning.
    places.begin(show, "logs", "notes", TABLE, *(path.name for path in out.glob("*.db*")))
    played: dict[str, Played] = {}
    summary: dict[str, dict[str, Any]] = {}
    with (
        cluster_of(given, places, show) as access,
        Admin(access.admin()) as admin,
        stop.after_batch(),
    ):
        serving(out, access.servers)
        player = Player(access, admin, places, show, stop, arguments.rate)
        for scene in scenes:
            has_spark = scene.name == FIRST and not arguments.without_spark
            _replace_topic(access, scene)
            sent = schema.traffic(sum(scene.counts(arguments.rate)), arguments.seed)
            with _beside(arguments.master, access, places, show, is_on=has_spark) as beside:
                show.step(f"{scene.name}: {scene.about}")
                played[scene.name] = player.play(scene, sent, beside)
                found = _checked(scene, sent, access, out, arguments.rate, beside, played[scene.name])
            if found.wrong:
                raise PipelineFailedError("; ".join(found.wrong))
            summary[scene.name] = found.figures | played[scene.name].figures()
            show.note(json.dumps(summary[scene.name]))
    show.note(f"picture: {pictures.draw({scene: played[scene.name] for scene in scenes}, out)}")
    show.step("done")
    deaths = {name: each.deaths for name, each in played.items() if each.deaths}
    return Outcome(summary, {"deaths": deaths, "seconds": round(time.perf_counter() - began, 3)})


def _checked(
    scene: Scene,
    sent: Sequence[tuple[bytes, bytes]],
    access: Access,
    out: Path,
    rate: float,
    beside: Beside | None,
    played: Played,
) -> Found:
    """The result of the second, independent calculation for a finished scene."""
    arrived = _arrived(access, scene)
    first = scene.counts(rate)[0] if scene.raised else len(sent)
    notes = read(notes_of(scene.name, out))
    found = check(scene, sent, first, arrived, notes, rebalanced=played.rebalanced)
    if scene.work in ("rows", "batches"):
        check_rows(f"the table of {scene.name}", database_rows(scene, out), arrived, found)
    if beside is not None:
        rows = beside.rows()
        check_rows("Spark's table", rows, arrived, found)
        limited, free = beside.batches
        found.figures["spark"] = {"rows": len(rows), "batches_limited": limited, "batches": free}
    return found


@contextmanager
def _beside(master: str, access: Access, places: Places, show: Show, *, is_on: bool) -> Iterator[Beside | None]:
    if not is_on:
        yield None
        return
    show.step(f"starting Spark ({master})")
    with local_spark("headrace scaling", master=master) as spark:
        beside = Beside(spark, access, places, FIRST)
        beside.warm()
        try:
            yield beside
        finally:
            beside.stop()


def _replace_topic(access: Access, scene: Scene) -> None:
    queries = [scene.name, QUERY] if scene.name == FIRST else [scene.name]
    new = NewTopic(schema.topic_of(scene.name), PARTITIONS, config={"retention.ms": "-1"})
    replace_topics(access, schema.PIPELINE, [new], queries=queries)


def _arrived(access: Access, scene: Scene) -> list[Row]:
    """The records of a scene's topic, read by a consumer without a group."""
    with Consumer(access.consumer()) as consumer:
        return [
            (record.partition, record.offset, (record.key or b"").decode(), json.loads(record.value or b"")["n"])
            for records in records_in_topic(consumer, schema.topic_of(scene.name))
            for record in records
        ]
