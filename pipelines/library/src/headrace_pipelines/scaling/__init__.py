"""A lag that grows, and seven ways to handle more records: members, partitions, batches, concurrency, a cache, Spark.

Read the modules in this order:

    schema.py      topics, groups, and the JSON of a record
    scenes.py      the scenes of a run: the traffic of each, and how it is handled
    deciding.py    the decision of the autoscaler; pure
    caching.py     a cache with a maximum size and a maximum age; pure
    notes.py       what a member notes of each record that it has handled
    handling.py    the ways to handle records
    processes.py   members and the autoscaler as processes (members.py starts them again when they die)
    beside.py      the Spark job that reads the same topic as the first scene
    truth.py       the same numbers from the topics and the notes, written a second time, for the check
    job.py         ``headrace-pipelines run scaling``

A slow call of a record waits CALL_S, so one member handles fewer than 1,000 records a second.
"""
