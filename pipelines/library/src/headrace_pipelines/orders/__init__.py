"""Orders of a shop by event sourcing and CQRS: commands, events, and tables that are computed from events alone.

Read the modules in this order:

    schema.py      topics, and the JSON of commands and events
    model.py       what an order is: ``decide`` a command, ``apply`` an event; pure
    handling.py    commands to events: one transaction for a batch, snapshots, the state that a new owner restores
    database.py    SQLite or PostgreSQL, and the generations of tables
    projecting.py  events to tables, and the rebuild of all tables while the live tables stay in use
    processes.py   handlers and projectors as processes (members.py starts them again when they die)
    traffic.py     customers: commands, some of them twice, some of them wrong
    truth.py       a second, independent computation of the tables from the commands, for the check
    job.py         ``headrace-pipelines run orders``

All other data can be computed from the events. Tables can be deleted and made again, and an order's snapshot only saves
time.
"""
