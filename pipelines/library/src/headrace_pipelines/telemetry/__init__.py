"""Telemetry of 10,000 devices: downsampling at three grains, alarms of silent devices, twins in a compacted topic.

Read the modules in this order:

    schema.py      topics, the rows in them, and the limits of time that all modules use
    fleet.py       10,000 devices with planted faults
    traffic.py     their records, sent at their times
    readings.py    records as readings or dead letters
    grains.py      minutes, five minutes, fifteen minutes
    devices.py     decides when a device is silent; a pure function
    watching.py    twins and alarms: state and timers
    checking.py    computes the expected results from the planted faults
    job.py         ``headrace-pipelines run telemetry``
"""
