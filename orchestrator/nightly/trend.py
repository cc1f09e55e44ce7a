"""The last accepted night, from MLflow: what tonight's errors are held against."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from orchestrator.tracking import mlflow_installed, tracking_address

ACCEPTED = "servesweep.accepted"
SUITE = "servesweep.suite"


def last_accepted(
    uri: str | None, experiment: str, folder: Path
) -> tuple[dict[str, dict[str, float]] | None, str]:
    """Errors of each case, and in words which night that was or why there is none."""
    if not mlflow_installed():
        return None, "MLflow is not installed"
    address = tracking_address(uri, folder)
    if address.startswith("sqlite:///") and not Path(address.removeprefix("sqlite:///")).is_file():
        return None, "no night was tracked yet"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    logging.getLogger("alembic").setLevel(logging.ERROR)
    try:
        return _read(address, experiment)
    except Exception as error:
        # Whatever a tracking server does: the night is judged without a trend, and says so.
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return None, f"no trend: {type(error).__name__}: {first_line}"


def _read(address: str, experiment: str) -> tuple[dict[str, dict[str, float]] | None, str]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=address)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return None, "no night was tracked yet"
    nights = client.search_runs(
        [found.experiment_id],
        filter_string=f"tags.`{ACCEPTED}` = 'true'",
        order_by=["attributes.start_time DESC"],
        max_results=1,
    )
    if not nights:
        return None, "no night was accepted yet"
    night = nights[0]
    cases: list[Any] = []
    token = None
    while True:
        page = client.search_runs(
            [found.experiment_id],
            filter_string=f"tags.`mlflow.parentRunId` = '{night.info.run_id}'",
            page_token=token,
        )
        cases += page
        token = page.token
        if not token:
            break
    errors = {run.data.tags.get("mlflow.runName", ""): dict(run.data.metrics) for run in cases}
    return errors, night.data.tags.get("mlflow.runName", night.info.run_id)
