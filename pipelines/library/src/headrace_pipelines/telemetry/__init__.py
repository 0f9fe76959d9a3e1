"""Telemetry of 10,000 devices: downsampling at three grains, alarms of silent devices, twins in a compacted topic.

Read the modules in this order:

    schema.py      topics, the rows in them, and the times on which all agree
    fleet.py       10,000 devices with planted faults
    traffic.py     their records, sent at their times
    readings.py    records as readings or dead letters
    grains.py      minutes, five minutes, fifteen minutes
    devices.py     when a device is silent, as a pure function
    watching.py    twins and alarms: state and timers
    checking.py    what the results must be, from the planted faults
    job.py         ``headrace-pipelines run telemetry``
"""
