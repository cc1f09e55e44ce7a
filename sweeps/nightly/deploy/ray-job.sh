#!/usr/bin/env bash
# The nightly gate as a job of a running Ray cluster, whose machines have this project's requirements
# and ray[default]:
#
#     RAY_API_SERVER_ADDRESS=http://HEAD:8265 sweeps/nightly/deploy/ray-job.sh [options of nightly]
#
# The checkout travels with the job. Results and baseline stay on the cluster: give --out a folder that
# its machines share. Exits with 0 if the gate is fine, otherwise with 1; the log tells which code it was.
set -euo pipefail
cd "$(dirname "$0")/../../.."
ray=${RAY:-.venv/bin/ray}
python=${JOB_PYTHON:-python}
runtime_env='{"excludes": [".git", ".venv", "out", "docs", "dist", "build"]}'
exec "$ray" job submit --working-dir . --runtime-env-json "$runtime_env" -- \
    "$python" -m orchestrator.cli nightly sweeps/nightly/suite.yaml "$@"
