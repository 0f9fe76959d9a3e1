#!/usr/bin/env bash
# The jars of the image "connect", fetched by Maven (mvn, Java 17) into build/connect/jars, before `docker compose build`.
# Nothing to do when the jars of pom.xml are there already.
set -euo pipefail
cd "$(dirname "$0")/../.."
pom=deploy/connect/pom.xml
to=build/connect
if cmp -s "$pom" "$to/jars/pom.xml"; then exit 0; fi
command -v mvn >/dev/null || {
  printf 'connect/jars.sh: cannot fetch the jars of Kafka Connect: mvn is missing; install Maven (Debian: maven)\n' >&2
  exit 1
}
mkdir -p "$to"
rm -rf "$to/new"
mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$PWD/$to/new"
cp "$pom" "$to/new/pom.xml"
rm -rf "$to/jars"
mv "$to/new" "$to/jars"
printf 'connect/jars.sh: %s jars in %s\n' "$(find "$to/jars" -name '*.jar' | wc -l)" "$to/jars"
