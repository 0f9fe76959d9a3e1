"""A controller's directory written by an earlier release, at metadata.version 1, with topics, settings and a broker.

The last release without other levels and voters created ``level_1_directory``, and stopped cleanly. A newer release
must not create the directory again, because the test would then prove nothing.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace_controller import applying
from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import (
    FeatureUpdate,
    Heartbeat,
    RegisterBroker,
    Request,
    UpdateFeatures,
    UpgradeType,
)
from headrace_controller.quorum_controller import QuorumController, QuorumSettings
from headrace_controller.storage import MetadataStorage
from headrace_core.errors import HeadraceError, UnsupportedVersionError
from headrace_core.log.files import RealFileSystem
from headrace_core.metadata import METADATA_VERSION, METADATA_VERSION_FEATURE, ConfigResourceType, MetadataImage
from headrace_core.metadata.features import SUPPORTED_FEATURES
from headrace_core.testing.clock import ManualClock

CLUSTER = "7p8rdIE_DaL8OMlToP_Y8Q"


class Life:
    """One start of a controller with the directory, until ``close``."""

    def __init__(self, root: Path) -> None:
        clock, rng = ManualClock(1_800_000_000_000), random.Random(1)
        self.storage = MetadataStorage.open(RealFileSystem(), str(root), clock=clock, cluster_id=CLUSTER, node_id=1)
        self.controller = QuorumController(
            ClusterCore(ClusterSettings(), new_id=lambda: rng.randbytes(16)),
            self.storage,
            node_id=1,
            cluster_id=CLUSTER,
            clock=clock,
            draw=rng.randrange,
            settings=QuorumSettings(),
            send=lambda messages: None,
        )
        try:
            self.controller.start()
        except BaseException:
            self.close()
            raise

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def ask(self, request: Request) -> Any:
        answers: list[Any] = []
        self.controller.submit(request, answers.append)
        for _ in range(10):
            if self.controller.begin():
                self.controller.persist()
            self.controller.finish()
        (answer,) = answers
        if isinstance(answer, HeadraceError):
            raise answer
        return answer.reply

    def raise_level(self) -> HeadraceError | None:
        update = FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION, UpgradeType.UPGRADE)
        (result,) = self.ask(UpdateFeatures((update,)))
        error: HeadraceError | None = result.error
        return error

    def broker_comes_up(self) -> None:
        before = self.image.brokers[1]
        registered = self.ask(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=b"i" * 16,
                directory_ids=before.directory_ids,
                endpoints=before.endpoints,
                previous_broker_epoch=before.broker_epoch,
                default_log_flush="commit",
                features=SUPPORTED_FEATURES,
            )
        )
        assert registered.broker_id == 1, "the directories say who it is"
        self.ask(Heartbeat(broker_id=1, broker_epoch=registered.broker_epoch, metadata_offset=self.image.next_offset))

    def close(self) -> None:
        self.storage.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).with_name("level_1_directory"), tmp_path / "controller"))


def check_contents(image: MetadataImage) -> None:
    assert {topic.name: len(topic.partitions) for topic in image.topics.values()} == {"alpha": 8, "beta": 3}
    assert image.config(ConfigResourceType.TOPIC, "beta") == {"retention.ms": "86400000"}
    assert set(image.brokers) == {1}


def test_an_old_directory_opens_with_all_it_had_and_serves_at_its_level(root: Path) -> None:
    life = Life(root)
    assert life.image.metadata_version == 1
    assert life.controller.is_active
    check_contents(life.image)
    assert not any(life.image.is_available(each, 1) for _, _, each in life.image.partitions_on(1)), "it is down"
    life.broker_comes_up()
    assert all(each.leader == 1 and each.isr == (1,) for _, _, each in life.image.partitions_on(1))
    assert life.image.metadata_version == 1
    life.close()


def test_it_is_raised_once_its_broker_is_new_and_stays_so_with_all_it_had(root: Path) -> None:
    life = Life(root)
    refused = life.raise_level()
    assert refused is not None
    assert "broker 1 does not support it" in refused.message
    life.broker_comes_up()
    assert life.raise_level() is None
    epoch = life.image.brokers[1].broker_epoch
    life.close()
    again = Life(root)
    assert again.image.metadata_version == METADATA_VERSION
    check_contents(again.image)
    again.ask(Heartbeat(broker_id=1, broker_epoch=epoch, metadata_offset=again.image.next_offset, want_fence=True))
    assert all((each.leader, each.elr) == (-1, (1,)) for _, _, each in again.image.partitions_on(1))
    again.close()


def test_a_release_that_does_not_know_the_level_does_not_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(root)
    life.broker_comes_up()
    life.raise_level()
    life.close()
    monkeypatch.setattr(applying, "METADATA_VERSION", METADATA_VERSION - 1)
    with pytest.raises(UnsupportedVersionError, match="has feature level 3, but this controller supports at most 2"):
        Life(root)
