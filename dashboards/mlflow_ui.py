"""MLflow's pages on the sweeps' store: views made ready, addresses printed, ended by Ctrl-C.

MLflow itself runs in a process of its own and is asked over its REST interface, so that this one
answers at once and never imports it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboards.mlflow_server import (
    Stop,
    Trouble,
    free_port,
    last_words,
    reachable,
    running,
    wait_until_up,
)
from dashboards.mlflow_views import BEST, Run, SweepRuns, compare_page, series_page, views
from orchestrator.ranking import LATENCY, MEAN_ABS
from orchestrator.tracking.address import (
    database_path,
    mlflow_installed,
    shown,
    sqlite_address,
    tracking_address,
)
from profiles.errors import MISSING, InputError

SWEEPS = 10  # the latest, shown and given views
MAX_POINTS = 200  # looked at for what the sweep varies
Tell = Callable[[str], object]


def serve(out: Path, host: str, port: int, tell: Tell) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP. Raises InputError before anything starts.

    Where MLFLOW_TRACKING_URI names a server, that one gets the views and nothing is started.
    """
    address = tracking_address(None, out)
    if address.startswith(("http://", "https://")):
        _tell_views(Api(address.rstrip("/")), shown(address).rstrip("/"), tell)
        return
    path = database_path(address)
    if path is None:
        expected = f"a tracking server or {sqlite_address(out)}"
        raise InputError("dashboard", "MLFLOW_TRACKING_URI", shown(address), expected)
    if not path.is_file():
        expected = "the database of sweeps that were tracked; `servesweep run` or `track` makes it"
        raise InputError(out, path.name, MISSING, expected)
    if not mlflow_installed():
        raise InputError("dashboard", "mlflow", MISSING, "MLflow to be installed")
    port = free_port(host, port)
    with Stop() as stop, tempfile.TemporaryFile() as log:
        try:
            with running(address, host, port, log, stop) as server:
                local = f"http://{reachable(host)}:{port}"
                tell(f"starting MLflow on {path} ...")
                wait_until_up(server, local, log)
                _tell_views(Api(local), local, tell)
                tell("Ctrl-C ends it")
                server.wait()
                raise Trouble(f"MLflow ended by itself: {last_words(log)}")
        except KeyboardInterrupt:
            with contextlib.suppress(OSError):  # the terminal may be gone
                tell("stopped")
        except Trouble as error:
            raise InputError("dashboard", "mlflow", str(error), "a server that runs") from None


class Api:
    """What is asked of a tracking server, through MLflow's REST interface."""

    def __init__(self, address: str) -> None:
        self._base = f"{address}/api/2.0/mlflow"

    def _post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        try:
            request = urllib.request.Request(
                f"{self._base}/{path}",
                data=json.dumps(content).encode(),
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: Any = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            detail = error.read().decode(errors="replace") if hasattr(error, "read") else ""
            raise Trouble(f"{path}: {error} {detail}"[:300].strip()) from None
        if not isinstance(found, dict):
            raise Trouble(f"{path}: an answer that is no object")
        return found

    def sweeps(self) -> list[SweepRuns]:
        """The latest sweeps with their truths and points."""
        experiments = self._all("experiments/search", "experiments", {})
        ids = [str(one["experiment_id"]) for one in experiments]
        if not ids:
            return []
        found = self._runs(
            ids, "tags.`servesweep.role` = 'sweep'", "attributes.start_time DESC", SWEEPS
        )
        return [self._sweep(experiment, run) for experiment, run in found]

    def _sweep(self, experiment: str, sweep: Run) -> SweepRuns:
        sweep_id = sweep.tags.get("servesweep.sweep_id", "").replace("'", "")
        of = f"tags.`servesweep.sweep_id` = '{sweep_id}' AND tags.`servesweep.role` ="
        truths = self._runs([experiment], f"{of} 'truth'", "attributes.start_time ASC", BEST)
        points: list[tuple[str, Run]] = []
        for measure in (MEAN_ABS, LATENCY):
            order = f"metrics.`{measure}` ASC"
            points = self._runs([experiment], f"{of} 'point'", order, MAX_POINTS)
            if any(measure in run.metrics for _, run in points):
                break
        own = [run for _, run in points if "servesweep.equals" not in run.tags]
        return SweepRuns(experiment, sweep, [run for _, run in truths], own)

    def set_experiment_tag(self, experiment: str, key: str, value: str) -> None:
        content = {"experiment_id": experiment, "key": key, "value": value}
        self._post("experiments/set-experiment-tag", content)

    def _runs(self, ids: list[str], search: str, order: str, count: int) -> list[tuple[str, Run]]:
        content = {
            "experiment_ids": ids,
            "filter": search,
            "order_by": [order],
            "max_results": count,
        }
        found = self._post("runs/search", content).get("runs", [])
        return [(str(run["info"]["experiment_id"]), _run(run)) for run in found]

    def _all(self, path: str, name: str, content: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        token = None
        while True:
            page = self._post(
                path, content | {"max_results": 1000} | ({"page_token": token} if token else {})
            )
            found += page.get(name, [])
            token = page.get("next_page_token")
            if not token:
                return found


def _run(run: dict[str, Any]) -> Run:
    info, data = run["info"], run.get("data", {})

    def pairs(name: str) -> dict[str, Any]:
        return {str(one["key"]): one.get("value", "") for one in data.get(name, [])}

    return Run(
        run_id=str(info["run_id"]),
        name=str(info.get("run_name", "")),
        start_ms=int(info.get("start_time", 0)),
        tags=pairs("tags"),
        params=pairs("params"),
        metrics=pairs("metrics"),
    )


def _tell_views(api: Api, address: str, tell: Tell) -> None:
    """Write the views of the latest sweeps and say where they are."""
    try:
        try:
            sweeps = api.sweeps()
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Trouble(f"an answer of another form, {type(error).__name__}: {error}") from None
        tell(f"MLflow: {address}")
        if not sweeps:
            tell("no sweep was tracked here; `servesweep run` or `track` writes one")
        for runs in sweeps:
            tell(f"{runs.sweep.name} ({runs.sweep_id})")
            for view in views(runs):
                api.set_experiment_tag(view.experiment_id, view.tag, view.value)
                what = view.name.removeprefix(f"{runs.sweep.name}: ")
                tell(f"  {what}: {address}{view.page}")
            if runs.shown:
                tell(f"  compare: {address}{compare_page(runs)}")
            page = series_page(runs, "running")
            if page:
                tell(f"  running over time: {address}{page}")
            page = f"/#/experiments/{runs.experiment_id}/runs/{runs.sweep.run_id}/artifacts"
            tell(f"  report: {address}{page}/report.html")
    except Trouble as error:
        raise InputError(
            "dashboard", "mlflow", str(error), "a tracking server that answers"
        ) from None
