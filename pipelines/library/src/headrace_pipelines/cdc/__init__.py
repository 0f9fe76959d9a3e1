"""Change data capture: tables of PostgreSQL as tables of a lake, row by row, in Delta Lake and Iceberg.

    PostgreSQL --> Debezium in Kafka Connect --> topics --> Spark --> lake tables

Read the modules in this order:

events.py      Debezium's change events as rows of a DataFrame
avro.py        events in Avro as JSON, by the schemas of a registry
columns.py     the columns of a table, from the schema in an event; pure functions
rows.py        typed rows of the events that have one schema
changes.py     the changes that a batch makes to one table; pure functions of Arrow
replica.py     the query, and the function that writes a batch to the tables
postgres.py    a PostgreSQL server of the run
connect.py     Kafka Connect with Debezium
workload.py    pgbench, with inserts, updates, deletes, changed keys and an ALTER TABLE
job.py         all of it together, and the comparison of the lake with PostgreSQL (comparison.py, pictures.py)
"""
