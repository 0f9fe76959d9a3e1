"""Lake tables in Delta Lake and Iceberg, without a JVM table format: Arrow in, each batch of a query exactly once.

columns.py   types that both formats have, and the allowed changes of a schema; pure functions of Arrow
table.py     what a lake table does: append, merge, compact, read, versions
delta.py     DeltaLakeTable, on deltalake (delta-rs)
iceberg.py   IcebergTable, on pyiceberg
streams.py   writes the batches of a Spark stream to a table: for foreachBatch
"""
