-- The quick start of ksqlDB, in the SQL of headrace-pipelines. docs/pipelines-sql.md has the results.
--   headrace-pipelines sql -f examples/quick_start.sql

CREATE STREAM riderLocations (profileId STRING, latitude DOUBLE, longitude DOUBLE)
  WITH (topic = 'locations', format = 'json', key = 'profileId', partitions = 1);

CREATE FUNCTION geo_distance(la1 DOUBLE, lo1 DOUBLE, la2 DOUBLE, lo2 DOUBLE) RETURNS DOUBLE
  RETURN 2 * 6371 * asin(sqrt(pow(sin(radians(la2 - la1) / 2), 2)
    + cos(radians(la1)) * cos(radians(la2)) * pow(sin(radians(lo2 - lo1) / 2), 2)));

CREATE TABLE currentLocation AS
  SELECT profileId, max_by(latitude, _offset) AS la, max_by(longitude, _offset) AS lo
  FROM riderLocations GROUP BY profileId;

CREATE VIEW ridersNearMountainView AS
  SELECT round(geo_distance(la, lo, 37.4133, -122.1162), -1) AS distanceInKm,
    sort_array(collect_list(profileId)) AS riders, count(*) AS count
  FROM currentLocation GROUP BY 1;

INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('c2309eec', 37.7877, -122.4205);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('18f4ea86', 37.3903, -122.0643);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('4ab5cbad', 37.3952, -122.0813);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('8b6eae59', 37.3944, -122.0813);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('4a7c7b41', 37.4049, -122.0822);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('4ddad000', 37.7857, -122.4011);

SET emit.from = earliest;
SELECT * FROM riderLocations
  WHERE geo_distance(latitude, longitude, 37.4133, -122.1162) <= 5 EMIT CHANGES LIMIT 3;

SELECT * FROM ridersNearMountainView WHERE distanceInKm <= 10 ORDER BY distanceInKm;
