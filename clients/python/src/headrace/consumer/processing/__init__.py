"""Concurrent processing of a consumer's records (``Consumer.process``): records with the same key stay in order, and
commits cover the finished records.

``book.py`` decides which record may be handled now, ``progress.py`` writes finished offsets into a commit's metadata.
Both are pure. ``blocking.py`` runs handlers in threads, ``aio.py`` in tasks of an event loop.
"""
