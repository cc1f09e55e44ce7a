#!/usr/bin/env bash
# The nightly gate from cron, in a checkout that `make quickstart` has set up:
#
#     17 2 * * *  /path/to/servesweep/sweeps/nightly/deploy/cron.sh
#
# Exits with the gate's code (0 fine, 1 regression, 2 could not compare); cron mails what it prints, so
# it prints the report only when the night was not fine. Everything else is in the log.
set -uo pipefail
cd "$(dirname "$0")/../../.."
out=${SERVESWEEP_OUT:-out}
mkdir -p "$out"
exec 9> "$out/.nightly.lock"
if ! flock --nonblock 9; then
    echo "servesweep: last night still runs" >&2
    exit 2
fi
servesweep=${SERVESWEEP:-.venv/bin/servesweep}
"$servesweep" nightly sweeps/nightly/suite.yaml --out "$out" --bisect "$@" > "$out/nightly.log" 2>&1
code=$?
if [ "$code" -ne 0 ]; then
    cat "$out/nightly.log"
fi
exit "$code"
