"""The options that a site gives to the queries of a pipeline."""

from __future__ import annotations

from pathlib import Path

from headrace_pipelines.sites import Site


def test_a_query_with_another_sink_has_its_name_and_its_checkpoint() -> None:
    site = Site("parcels", "127.0.0.1:9095", Path("/out"))
    assert site.query("lake") == {"queryName": "lake", "checkpointLocation": "/out/checkpoints/lake"}
    assert site.query("lake").items() <= site.write("parcels-clean", query="lake").items()


def test_checkpoints_may_be_elsewhere() -> None:
    site = Site("parcels", "127.0.0.1:9095", Path("/out"), checkpoints="hdfs://host/checkpoints")
    assert site.query("lake")["checkpointLocation"] == "hdfs://host/checkpoints/lake"
