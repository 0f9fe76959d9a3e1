"""A lag that grows, and seven ways to handle more records: members, partitions, batches, concurrency, a cache, Spark.

Read the modules in this order:

    schema.py      topics, groups, and the JSON of a record
    scenes.py      the scenes of a run: the traffic of each scene, and how its records are handled
    deciding.py    the decision of the autoscaler; pure
    caching.py     a cache with a maximum size and a maximum age; pure
    notes.py       the line that a member writes for each handled record
    handling.py    the ways to handle records
    processes.py   members and the autoscaler as processes (members.py starts them again when they die)
    beside.py      the Spark job that reads the same topic as the first scene
    truth.py       a second, independent computation of the numbers from the topics and the notes, for the check
    job.py         ``headrace-pipelines run scaling``

A slow call of a record waits CALL_S, so one member handles fewer than 1,000 records a second.
"""
