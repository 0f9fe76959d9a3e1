"""Replicas of a registry on a real cluster: one of them writes, and no write is lost or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from headrace import Admin, AsyncConsumer, AsyncProducer, LocalCluster, NewTopic
from headrace.engine.io_thread import io_thread
from headrace.errors import InvalidConfigError, RequestTimedOutError
from headrace_registry import registry as registry_module
from headrace_registry import topic as topic_module
from headrace_registry.compat import Level
from headrace_registry.events import WriterElected
from headrace_registry.registry import NotWriterError, Registry, State, WriteTimeoutError
from headrace_registry.schemas import Schema, SchemaType
from headrace_registry.schemas.model import SCHEMA_BYTES_MAX
from headrace_registry.state import Deciding, RegistryError, Rules, Submission
from tests.worlds.registries import Replicas, run_with
from tests.worlds.waiting import until_async


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, mode="inprocess") as running:
        yield running


@pytest.fixture
def replicas(cluster: LocalCluster, request: pytest.FixtureRequest) -> Replicas:
    return Replicas(cluster, "".join(each if each.isalnum() else "-" for each in request.node.name)[:150])


def test_every_replica_reads_what_one_of_them_writes(replicas: Replicas) -> None:
    async def scenario() -> None:
        for _ in range(3):
            await replicas.start()
        writer = await replicas.writer()
        ids = await asyncio.gather(*(writer.write(replicas.registering(number)) for number in range(50)))
        assert sorted(ids) == list(range(1, 51))
        assert await writer.write(replicas.registering(7)) == ids[7], "a schema has one id"
        for each in replicas.running:
            await until_async(lambda each=each: each.image.schema_count == 50)  # type: ignore[misc]
            assert each.writer_url == writer.url
            if each is not writer:
                with pytest.raises(NotWriterError) as refused:
                    await each.write(replicas.registering(1))
                assert refused.value.url == writer.url

    run_with(replicas, scenario())


def test_a_stopped_writer_hands_over_and_the_next_one_knows_every_id(replicas: Replicas) -> None:
    async def scenario() -> None:
        await replicas.start()
        first = await replicas.writer()
        await replicas.start()
        assert await first.write(replicas.registering(1)) == 1
        await first.stop()
        second = await replicas.writer(without=first)
        assert await second.write(replicas.registering(2)) == 2
        assert first.writer_url is None, "its own announcement is not the writer's any more"
        third = await replicas.start()
        assert third.image.schema_count == 2
        assert third.writer_url == second.url

    run_with(replicas, scenario())


def test_writes_in_progress_learn_the_next_writer_when_the_writer_stops(replicas: Replicas) -> None:
    async def scenario() -> None:
        await replicas.start()
        first = await replicas.writer()
        second = await replicas.start()
        writes = [asyncio.create_task(first.write(replicas.registering(number))) for number in range(200)]
        await until_async(lambda: any(each.done() for each in writes))
        late = asyncio.create_task(first.stop())
        await asyncio.sleep(0)
        writes += [asyncio.create_task(first.write(replicas.registering(number))) for number in range(200, 250)]
        ids = set()
        for number, outcome in enumerate(await asyncio.gather(*writes, return_exceptions=True)):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, NotWriterError)
                assert outcome.url == second.url, "the API forwards the request there"
                outcome = await second.write(replicas.registering(number))
            ids.add(outcome)
        assert ids == set(range(1, 251))
        await late

    run_with(replicas, scenario())


def test_a_replica_starts_behind_an_aborted_transaction(replicas: Replicas, cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await (await replicas.start()).stop()
        topic = replicas.settings.topic
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="other") as producer:
            await producer.begin_transaction()
            await (await producer.send(topic, b"{}", b'{"keytype":"NOOP","magic":0}', None, 0))
            await producer.abort_transaction()
        replica = await replicas.start()
        assert replica.image.schema_count == 0
        assert await (await replicas.writer()).write(replicas.registering(1)) == 1

    run_with(replicas, scenario())


def test_records_that_are_not_of_a_registry_are_skipped(replicas: Replicas, cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await (await replicas.start()).stop()
        topic = replicas.settings.topic
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for key, value in ((b"\xff", b"\xff"), (b'{"keytype":"SCHEMA"}', b"[]"), (b"{}", None)):
                await (await producer.send(topic, value, key, None, 0))
        await replicas.start()
        assert await (await replicas.writer()).write(replicas.registering(1)) == 1

    run_with(replicas, scenario())


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_write_whose_commit_has_no_answer_is_done_once(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """The commit's answer is lost: the topic tells whether the transaction was committed."""
    real = AsyncProducer.commit_transaction
    lost: list[str] = []

    async def lose(producer: AsyncProducer) -> None:
        if armed and not lost:
            lost.append("answer")
            if is_committed:
                await real(producer)
            raise RequestTimedOutError("the coordinator does not answer")
        await real(producer)

    armed = False

    async def scenario() -> None:
        nonlocal armed
        await replicas.start()
        writer = await replicas.writer()
        await writer.write(replicas.registering(1))
        before = writer.next_offset
        armed = True
        ids = await asyncio.gather(*(writer.write(replicas.registering(number, "one")) for number in (2, 3)))
        assert (lost, ids) == (["answer"], [2, 3])
        assert [each.number for each in writer.image.versions("one")] == [1, 2]
        assert writer.next_offset > before
        await until_async(
            lambda: sum(isinstance(each, WriterElected) for each in replicas.events) == 2, "it elects itself again"
        )

    replicas.deciding = Deciding(Rules(default_level=Level.NONE))
    monkeypatch.setattr(AsyncProducer, "commit_transaction", lose)
    run_with(replicas, scenario())


def test_a_fenced_writer_decides_again_in_a_new_term(replicas: Replicas, cluster: LocalCluster) -> None:
    """Another producer takes the transactional id, as a candidate does that the group assigned in between."""

    async def scenario() -> None:
        await replicas.start()
        writer = await replicas.writer()
        await writer.write(replicas.registering(1))
        other = AsyncProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=replicas.settings.group_id)
        await other.init_transactions()
        assert await writer.write(replicas.registering(2)) == 2
        await other.close()

    run_with(replicas, scenario())


def test_a_replica_that_is_no_member_any_more_cannot_fence_the_writer(replicas: Replicas) -> None:
    """The first writer loses its membership without noticing, and still believes that it is assigned."""

    async def scenario() -> None:
        first = await replicas.start()
        await replicas.writer()
        assert first._member is not None
        member = first._member
        (membership,) = [each for each in first._tasks._tasks if each.get_name() == "membership"]
        await replicas.start()
        membership.cancel()
        # `close` would call on_revoked, which hands over: this replica must not notice.
        first._on_revoked = None  # type: ignore[assignment,method-assign]
        await member._core.engine.io.run_async(member._core.shut_down())
        second = await replicas.writer(without=first)
        await until_async(lambda: first.state is not State.WRITER)
        assert await second.write(replicas.registering(1)) == 1
        assert first._assigned.is_set(), "it tries again and again to be elected"
        before = sum(isinstance(each, WriterElected) for each in replicas.events)
        for number in range(2, 30):
            await second.write(replicas.registering(number))
            await asyncio.sleep(0.05)
        assert sum(isinstance(each, WriterElected) for each in replicas.events) == before
        assert second.state is State.WRITER
        first._tasks._tasks.remove(membership)

    run_with(replicas, scenario())


def test_a_replica_that_claims_a_term_wrongly_gives_way_to_the_member_with_the_partition(replicas: Replicas) -> None:
    """Two replicas have the same URL by mistake, so the second one believes that it was the last writer."""

    async def scenario() -> None:
        first = await replicas.start()
        await replicas.writer()
        second = replicas.new(url=first.url)
        writes = asyncio.create_task(_write_all(first, replicas, range(200)))
        await second.start()
        assert second._is_claimed
        await until_async(lambda: not second._is_claimed)
        await until_async(lambda: first.state is State.WRITER)
        assert await writes == list(range(1, 201))
        assert not second._assigned.is_set()
        assert second.state is State.FOLLOWER
        await until_async(lambda: second.image.schema_count == 200)

    run_with(replicas, scenario())


async def _write_all(writer: Registry, replicas: Replicas, numbers: Iterable[int]) -> list[int]:
    ids = []
    for number in numbers:
        ids.append(await writer.write(replicas.registering(number)))
        await asyncio.sleep(0.01)
    return ids


def test_a_replica_that_was_suspended_answers_only_when_it_has_read_the_topic_to_its_end(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "CATCH_UP_S", 0.2)

    async def scenario() -> None:
        first, second = await replicas.start(), await replicas.start()
        writer = await replicas.writer()
        asleep = second if writer is first else first
        assert await asleep.catch_up()
        awake, sleeps = asyncio.Event(), asyncio.Event()
        read = asleep._read

        async def read_when_awake(reader: AsyncConsumer) -> int:
            sleeps.set()
            await awake.wait()
            return await read(reader)

        with monkeypatch.context() as patched:
            patched.setattr(asleep, "_read", read_when_awake)
            await until_async(lambda: writer.next_offset == asleep.next_offset)
            await asyncio.wait_for(sleeps.wait(), 30)  # a read that began before would see the record
            given = await writer.write(replicas.registering(1))
            asleep._awake_ms -= 60_000  # as after SIGSTOP and SIGCONT
            assert not await asleep.catch_up()
            assert not await asleep.catch_up()  # not only the first request
            awake.set()
            await until_async(lambda: asleep._is_current.is_set())
        assert await asleep.catch_up()
        assert asleep.image.schema(given) is not None

    run_with(replicas, scenario())


def test_two_replicas_with_one_url_are_reported(replicas: Replicas, caplog: pytest.LogCaptureFixture) -> None:
    """As replicas on two machines do, both with the default listener on 127.0.0.1."""

    async def scenario() -> None:
        first, second = (replicas.new("http://127.0.0.1:8081") for _ in range(2))
        await first.start()
        await replicas.writer()
        assert "has the same URL as this replica" not in caplog.text
        await second.start()
        await until_async(lambda: "give each replica its own registry.advertised.url" in caplog.text)

    run_with(replicas, scenario())


def test_a_refused_decision_and_a_write_that_takes_too_long_are_errors_of_the_caller(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Replicas(cluster, "slow-writes")

    async def never(producer: AsyncProducer) -> None:
        await asyncio.sleep(3600)

    async def scenario() -> None:
        await replicas.start()
        writer = await replicas.writer()
        await writer.write(replicas.registering(1, "one"))
        with pytest.raises(RegistryError, match="incompatible"):
            await writer.write(replicas.registering(2, "one"))
        with monkeypatch.context() as patched:
            patched.setattr(AsyncProducer, "commit_transaction", never)
            patched.setattr(writer, "settings", replace(writer.settings, write_timeout_s=0.3))
            with pytest.raises(WriteTimeoutError, match=r"not committed within 0\.3 s and may still take effect"):
                await writer.write(replicas.registering(3))

    run_with(replicas, scenario())


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("two-partitions", partitions=2, config={"cleanup.policy": "compact"}), "has 2 partitions"),
        (NewTopic("deleting", partitions=1), "cleanup.policy=delete"),
        (NewTopic("both", partitions=1, config={"cleanup.policy": "compact,delete"}), "cleanup.policy=compact,delete"),
    ],
)
def test_a_topic_that_could_lose_schemas_is_refused(cluster: LocalCluster, topic: NewTopic, error: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([topic])
    replicas = Replicas(cluster, topic.name)

    async def scenario() -> None:
        with pytest.raises(InvalidConfigError, match=error):
            await replicas.start()

    run_with(replicas, scenario())


def test_a_new_topic_is_compacted_and_has_as_many_replicas_as_there_are_brokers(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_module, "MORE_BROKERS_S", 0.5)
    replicas = Replicas(cluster, "three-wanted")
    replicas.settings = replace(replicas.settings, replication_factor=3)
    run_with(replicas, _started(replicas))
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        (found,) = admin.describe_topics(["three-wanted"])
    assert [len(each.replicas) for each in found.partitions] == [1]
    assert found.max_message_bytes == topic_module.MESSAGE_BYTES
    run_with(replicas, _started(replicas))
    warning = "topic three-wanted has 1 replica, and kafkastore.topic.replication.factor is 3"
    assert caplog.text.count(warning) == 2, "also when the topic exists"


async def _started(replicas: Replicas) -> None:
    await replicas.start()


def test_the_largest_schema_with_the_longest_escapes_fits_into_a_record(replicas: Replicas) -> None:
    async def scenario() -> None:
        await replicas.start()
        writer = await replicas.writer()
        head, tail = '{"type":"record","name":"R","doc":"', '","fields":[]}'
        room = SCHEMA_BYTES_MAX - len(head) - len(tail)
        text = head + '\\"' * (room // 2) + tail  # in the record's JSON each of these quotes takes four bytes
        submitted = Submission("large", Schema(SchemaType.AVRO, text))
        decide = replicas.deciding.register
        assert await writer.write(lambda image: decide(image, submitted, normalize=False)) == 1
        other = await replicas.start()
        assert other.image.schema_count == 1

    run_with(replicas, scenario())


def test_a_replica_that_may_not_write_joins_no_group(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "ELECTION_S", 0.2)
    replicas = Replicas(cluster, "reader-only", is_eligible=False)

    async def scenario() -> None:
        reader = await replicas.start()
        with pytest.raises(NotWriterError) as refused:
            await reader.write(replicas.registering(1))
        assert refused.value.url is None
        assert reader._member is None

    run_with(replicas, scenario())


def test_all_replicas_stop_at_once_and_nothing_is_left_running(replicas: Replicas) -> None:
    async def scenario() -> None:
        first = await replicas.start()
        await replicas.writer()
        await first.stop(at_once=True)
        with pytest.raises(NotWriterError):
            await first.write(replicas.registering(1))
        await asyncio.sleep(0)
        names = {each.get_name() for each in asyncio.all_tasks(io_thread().loop)}
        assert not names & {"reader", "elections", "membership", "term of the writer"}

    run_with(replicas, scenario())
