#!/usr/bin/env bash
# The jars of the image "connect", into build/connect/jars, before `docker compose build`: Maven fetches those of pom.xml,
# and javac (JDK 17) makes headrace-connect.jar from the sources that the pipeline cdc has. Nothing to do when all are there already.
set -euo pipefail
cd "$(dirname "$0")/../.."
pom=deploy/connect/pom.xml
sources=(pipelines/library/src/headrace_pipelines/cdc/java/headrace/connect/*.java)
to=build/connect
is_made() {
  cmp -s "$pom" "$to/jars/pom.xml" || return 1
  for source in "${sources[@]}"; do cmp -s "$source" "$to/jars/${source##*/}" || return 1; done
}
if is_made; then exit 0; fi
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
javac --release 17 -d "$to/classes" -cp "$to/new/*" "${sources[@]}"
jar --create --file "$to/new/headrace-connect.jar" -C "$to/classes" headrace
cp "$pom" "${sources[@]}" "$to/new/"
rm -rf "$to/jars"
mv "$to/new" "$to/jars"
printf 'connect/jars.sh: %s jars in %s\n' "$(find "$to/jars" -name '*.jar' | wc -l)" "$to/jars"
