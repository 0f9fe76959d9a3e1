"""Compute the gold tables (aggregates for reports) from the silver tables."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def delays(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """For each day and airport: the numbers of flights and cancelled flights, the mean delays in minutes, and the worst
    weather at departure times. The column ``arr_delay`` exists from release 2 on."""
    hourly = weather.groupBy("origin", "hour").agg(  # count each hour once, even if a record of the weather came twice
        F.max("wind_speed").alias("wind_speed"), F.max("precip").alias("precip"), F.min("visib").alias("visib")
    )
    joined = flights.join(hourly, ["origin", "hour"], "left")
    arrivals: list[Column] = []
    if "arr_delay" in flights.columns:
        arrivals = [F.count("arr_delay").alias("arrivals"), F.avg("arr_delay").alias("mean_arr_delay")]
    return joined.groupBy("day", "origin").agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
        F.avg("dep_delay").alias("mean_dep_delay"),
        *arrivals,
        F.max("wind_speed").alias("wind_speed_max"),
        F.max("precip").alias("precip_max"),
        F.min("visib").alias("visib_min"),
    )


def makers(flights: DataFrame, planes: DataFrame) -> DataFrame:
    """For each manufacturer: the number of its planes that flew, and the number of their flights. From release 2 on,
    the table also has the number of seats in the counted flights."""
    joined = flights.where("dep_delay IS NOT NULL").join(planes, "tailnum")
    seats: list[Column] = []
    if "seats" in planes.columns:
        seats = [F.sum("seats").alias("seats")]
    return joined.groupBy("manufacturer").agg(
        F.count_distinct("tailnum").alias("planes"), F.count("*").alias("flights"), *seats
    )
