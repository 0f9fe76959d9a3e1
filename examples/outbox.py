"""The outbox pattern: a service changes its table and writes an event in one transaction of PostgreSQL, and Debezium
sends the event to a topic, exactly once.

Without an outbox, a service that crashes between COMMIT and send() has changed its table, and the event is lost. Here
the event is a row of the table ``outbox``, so it is committed with the change, or not at all. The service deletes the
row in the same transaction: Debezium reads PostgreSQL's log, and the log has the insert, so the table stays empty.

Debezium's EventRouter sends the row to the topic ``events.AGGREGATETYPE``, with ``aggregateid`` as the key and
``payload`` as the value. The events of one order are therefore in one partition, in order.

    python examples/outbox.py DIRECTORY     # starts all it needs; Debian: maven openjdk-17-jre-headless postgresql
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from headrace import Consumer, LocalCluster
from headrace_pipelines.cdc.connect import Worker, debezium, fetch_jars
from headrace_pipelines.cdc.postgres import Postgres

ORDERS = 20
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, state text NOT NULL);
CREATE TABLE outbox (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
  type text NOT NULL, payload jsonb NOT NULL);
"""
ROUTER = {
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.route.topic.replacement": "events.${routedByValue}",
    "transforms.outbox.table.fields.additional.placement": "type:header:type",
    # The payload is JSON already, so the record's value is the text itself.
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}


def place_order(postgres: Postgres, order: int) -> None:
    """Insert an order and its event, in one transaction."""
    payload = json.dumps({"order": order, "state": "placed"})
    postgres.execute(
        f"INSERT INTO orders VALUES ({order}, 'placed');"
        f"INSERT INTO outbox (aggregatetype, aggregateid, type, payload) "
        f"VALUES ('order', '{order}', 'OrderPlaced', '{payload}');"
        "DELETE FROM outbox"
    )


def fail_to_place_order(postgres: Postgres, order: int) -> None:
    """The transaction is rolled back: there is no order, and no event."""
    postgres.execute(
        f"INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', '{order}', 'Never', '{{}}');"
        f"ROLLBACK"
    )


def read_events(servers: str, count: int) -> list[dict[str, Any]]:
    """The first ``count`` events of the orders: key, type, the event's id, payload."""
    settings = {"bootstrap.servers": servers, "group.id": "shipping", "auto.offset.reset": "earliest"}
    found: list[dict[str, Any]] = []
    with Consumer({**settings, "isolation.level": "read_committed"}) as consumer:
        consumer.subscribe(["events.order"])
        for record in consumer:
            headers = {name: (value or b"").decode() for name, value in record.headers}
            payload = json.loads(record.value or b"null")
            key = (record.key or b"").decode()
            found.append({"key": key, "type": headers["type"], "id": headers["id"], "payload": payload})
            if len(found) == count:
                break
        consumer.commit()
    return found


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    jars = fetch_jars(directory / "jars")
    with (
        LocalCluster(brokers=3, controllers=1, kafka=True) as cluster,
        Postgres(directory / "postgres.log") as postgres,
        Worker(jars, directory, cluster.kafka_bootstrap_servers) as worker,
    ):
        postgres.execute(TABLES)
        worker.run_connector({**debezium(postgres.port, "shop", ["public.outbox"]), **ROUTER})
        for order in range(ORDERS):
            place_order(postgres, order)
            fail_to_place_order(postgres, ORDERS + order)
        events = read_events(cluster.bootstrap_servers, ORDERS)
        rows = postgres.execute("SELECT count(*) FROM outbox")
    orders = sorted(event["payload"]["order"] for event in events)
    print(json.dumps({"events": len(events), "orders": orders, "first": events[0], "rows_in_outbox": int(rows)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
