"""The metadata shell: the files of a metadata log read as they lie there, without a controller (``headrace metadata``).

    reading.py   record by record, through snapshots and segments; damage is named and stepped over
    control.py   what Raft writes between the decisions
    tree.py      the state that they add up to, as directories and files

Takes no lock and writes nothing: a running controller's directory may be read. Needs msgspec, as services do.
"""
