#!/usr/bin/env bash
# Says that a target is not built yet, and fails: nothing may mistake its absence for success.
printf 'make %s: not built yet: %s\n' "$1" "$2" >&2
exit 2
