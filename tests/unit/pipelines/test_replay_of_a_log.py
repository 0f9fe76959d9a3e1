"""The clickstream's replay: the time of each line, lines that are sent several times, and when they are sent."""

from __future__ import annotations

import gzip
import itertools
from collections import Counter
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace_pipelines.access import Access
from headrace_pipelines.clickstream import replay
from headrace_pipelines.clickstream.replay import Replay, Sent, lines, read_log, web_log


def line(time: str, address: str = "10.0.0.1") -> bytes:
    return f'{address} - - [{time}] "GET / HTTP/1.1" 200 1 "-" "Firefox"'.encode()


def ms(year: int, month: int, day: int, hour: int, minute: int = 0, second: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp() * 1000)


def times(*texts: bytes) -> list[int]:
    return [each.time_ms for each in lines(b"\n".join(texts) + b"\n")]


MAY_17 = ms(2015, 5, 17, 10)


def test_the_web_log_of_the_package_has_ten_thousand_lines_in_nearly_the_order_of_time() -> None:
    found = list(lines(web_log()))
    assert len(found) == 10_000
    assert found[0].time_ms == ms(2015, 5, 17, 10, 5, 3)
    disorder_ms = max(before.time_ms - after.time_ms for before, after in itertools.pairwise(found))
    assert 0 < disorder_ms < 60_000
    assert len({each.name for each in found}) == 10_000


def test_a_line_has_its_own_time_with_its_zone() -> None:
    assert times(line("17/May/2015:10:00:00 +0000"), line("17/May/2015:12:00:00 +0200")) == [MAY_17, MAY_17]


def test_a_line_without_a_time_is_sent_with_the_line_before_it() -> None:
    assert (
        times(line("17/May/2015:10:00:00 +0000"), b"rubbish", b"", line("99/May/2015:10:00:00 +0000")) == [MAY_17] * 4
    )


def test_a_log_without_a_final_newline_loses_no_line_and_an_empty_log_has_none() -> None:
    assert [each.value for each in lines(b"one\ntwo")] == [b"one", b"two"]
    assert list(lines(b"")) == []


@pytest.mark.parametrize("wrong", ["17/May/1965:10:00:00 +0000", "17/May/2065:10:00:00 +0000"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_with_a_wrong_clock_does_not_move_the_clock(wrong: str, place: int) -> None:
    texts = [line("17/May/2015:10:00:00 +0000"), line("17/May/2015:10:00:00 +0000")]
    texts.insert(place, line(wrong))
    assert times(*texts) == [MAY_17] * 3


def test_the_clock_crosses_a_gap_of_more_than_a_day() -> None:
    after = line("20/May/2015:10:00:00 +0000")
    assert times(line("17/May/2015:10:00:00 +0000"), after, after, after)[1:] == [ms(2015, 5, 20, 10)] * 3


def test_copies_of_a_line_have_other_addresses_and_names() -> None:
    found = list(lines(line("17/May/2015:10:00:00 +0000", "10.0.7.8") + b"\n", copies=3))
    assert [each.key for each in found] == [b"10.0.7.8", b"10.1.7.8", b"10.2.7.8"]
    assert [each.name for each in found] == [b"0/1", b"1/1", b"2/1"]
    assert all(each.value.startswith(each.key + b" ") for each in found)


def test_a_log_may_be_gzipped_and_a_missing_one_is_named(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "a.log.gz"
    plain.write_bytes(b"one\n")
    packed.write_bytes(gzip.compress(b"one\n"))
    assert read_log(plain) == read_log(packed) == b"one\n"
    with pytest.raises(HeadraceError, match=r"cannot read the log .*b\.log: No such file"):
        read_log(tmp_path / "b.log")


class Recorder:
    """A producer that keeps the names of the lines that it was given."""

    def __init__(self) -> None:
        self.names: list[bytes] = []

    def send(self, topic: str, *, headers: list[tuple[str, bytes]], **record: Any) -> Future[None]:
        ((_, name),) = headers
        self.names.append(name)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def flush(self, timeout: float) -> None:
        pass

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def test_a_continued_replay_sends_the_lines_that_the_topic_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    content = list(lines(b"one\ntwo\nthree\nfour"))

    def sent(there: dict[bytes, int] | None) -> Counter[bytes]:
        producer = Recorder()
        monkeypatch.setattr(replay, "Producer", lambda _: producer)
        one = Replay(Access("nowhere"), content, speed=1.0, repeat_every=2, there=there)
        one.start()
        one.result()
        assert one.total == Sent(lines=4, repeats=2)
        assert one.sent == 6
        assert one.lag_s(6) == 0
        return Counter(producer.names)

    whole = sent(None)
    assert whole == {b"0/1": 1, b"0/2": 2, b"0/3": 1, b"0/4": 2}
    assert sent({b"0/1": 1, b"0/4": 1}) == {b"0/2": 2, b"0/3": 1, b"0/4": 1}
    assert sent(dict(whole)) == {}
