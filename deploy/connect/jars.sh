#!/usr/bin/env bash
# The jars of the image "connect", into build/connect/jars, before `docker compose build`: Maven fetches those of pom.xml,
# and javac (JDK 17) makes headrace-connect.jar from java/. Nothing to do when all are there already.
set -euo pipefail
cd "$(dirname "$0")/../.."
pom=deploy/connect/pom.xml
source=deploy/connect/java/headrace/connect/ConfluentSchemaResolver.java
to=build/connect
if cmp -s "$pom" "$to/jars/pom.xml" && cmp -s "$source" "$to/jars/${source##*/}"; then exit 0; fi
for tool in mvn javac jar; do
  command -v "$tool" >/dev/null || {
    printf 'connect/jars.sh: cannot make the jars of Kafka Connect: %s is missing; install %s\n' \
      "$tool" 'Maven and JDK 17 (Debian: maven openjdk-17-jdk-headless)' >&2
    exit 1
  }
done
mkdir -p "$to"
rm -rf "$to/new"
mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$PWD/$to/new"
rm -rf "$to/classes"
javac --release 17 -d "$to/classes" -cp "$to/new/*" "$source"
jar --create --file "$to/new/headrace-connect.jar" -C "$to/classes" headrace
cp "$pom" "$source" "$to/new/"
rm -rf "$to/jars"
mv "$to/new" "$to/jars"
printf 'connect/jars.sh: %s jars in %s\n' "$(find "$to/jars" -name '*.jar' | wc -l)" "$to/jars"
