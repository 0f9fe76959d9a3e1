"""Finding where a log diverged from the records that were read (KIP-320), by the leader epochs of the read records."""

from __future__ import annotations

import random

from headrace.consumer.read_epochs import KEPT, ReadEpochs
from headrace_core.records import encode_batch


def read(*records: tuple[int, int]) -> ReadEpochs:
    epochs = ReadEpochs()
    for epoch, offset in records:
        epochs.note(epoch, offset)
    return epochs


def test_nothing_read_has_no_epoch() -> None:
    assert ReadEpochs().last == -1


def test_log_that_lacks_the_last_epoch_is_another_one_from_where_that_began_though_it_is_longer() -> None:
    epochs = read((1, 0), (1, 5), (3, 10), (3, 11))
    assert epochs.divergent(12, 3, 20) == 12, "the same log"
    assert epochs.divergent(12, 3, 11) == 11, "cut within the last epoch"
    assert epochs.divergent(12, 2, 20) == 10, "no epoch 3 there: its records are others'"
    assert epochs.divergent(12, 1, 7) == 7
    assert epochs.divergent(12, 0, 4) == 0, "all that was read"


def test_position_without_a_history_goes_back_one_record_at_least() -> None:
    epochs = ReadEpochs()
    epochs.begin(100, 5)  # a committed position, and the epoch of the record before it
    assert epochs.last == 5
    assert epochs.divergent(100, 4, 300) == 99


def test_going_back_forgets_what_was_cut_off() -> None:
    epochs = read((1, 0), (2, 10), (3, 20))
    epochs.go_back(15)
    assert epochs.last == 2
    assert epochs.divergent(15, 1, 40) == 10
    epochs.note(6, 15)
    assert epochs.divergent(16, 2, 40) == 15


def test_the_epoch_of_the_record_before_a_position() -> None:
    epochs = read((1, 0), (2, 10), (5, 20))
    assert [epochs.before(offset) for offset in (0, 1, 10, 11, 20, 21, 99)] == [-1, 1, 1, 2, 2, 5, 5]
    epochs.begin(100, 7)
    assert [epochs.before(offset) for offset in (99, 100, 101)] == [-1, 7, 7]


def test_batches_tell_their_epochs() -> None:
    epochs = ReadEpochs()
    data = b"".join(encode_batch([(0, None, b"v", None)], leader_epoch=epoch) for epoch in (3, 3))
    epochs.note_fetched(data, -1, 0)
    assert epochs.last == 3


def test_it_never_goes_on_behind_the_first_record_that_is_another_one() -> None:
    """Two histories that diverge at some offset, and the answers of OffsetForLeaderEpoch from the second history."""
    for seed in range(300):
        rng = random.Random(seed)
        shared = [(epoch, None) for epoch in sorted(rng.randrange(4) for _ in range(rng.randrange(6)))]
        first = shared[-1][0] if shared else 0
        ours = shared + [(epoch, "ours") for epoch in sorted(rng.randrange(first + 1, 12) for _ in range(6))]
        taken = {epoch for epoch, _ in ours}  # an epoch has only one leader, so the other log has none of our epochs
        free = [epoch for epoch in range(first, 14) if epoch not in taken or epoch == first]
        theirs = shared + [(epoch, "theirs") for epoch in sorted(rng.choice(free) for _ in range(rng.randrange(20)))]
        epochs = read(*((epoch, offset) for offset, (epoch, _) in enumerate(ours)))
        at = end = len(ours)
        while epochs.last >= 0:
            not_above = [offset for offset, (epoch, _) in enumerate(theirs) if epoch <= epochs.last]
            found, end = (theirs[not_above[-1]][0], not_above[-1] + 1) if not_above else (-1, 0)
            if found == epochs.last and end >= at:
                break  # the values that the broker checks in each fetch
            at = epochs.divergent(at, found, end)
            epochs.go_back(at)
        assert ours[:at] == theirs[:at], seed
        if len(taken) < KEPT:
            assert at >= min(len(shared), end), f"seed {seed}: no more is read again than there is reason to"
