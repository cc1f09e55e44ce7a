"""Any tracking server, through MLflow's public client: four requests a run.

A run is created with its tags, ended, and given its numbers; its tag `servesweep.complete` comes
with the last of them. A run without it is what a crash left: it is deleted and written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.tracking.backend import (
    Refused,
    Unreachable,
    as_ours,
    import_mlflow,
    now_ms,
    system_tags,
)
from orchestrator.tracking.entry import (
    COMPLETE,
    SWEEP_ID,
    Entry,
    Identity,
    identity_of,
    lacks_series_only,
    satisfied,
)
from orchestrator.tracking.names import MAX_TAG, clean_name, clean_text

MAX_METRICS = 800  # a request may hold 1000 things, 100 of them parameters and 100 tags
MAX_OTHERS = 99
PAGE = 1000
CHANGED = "servesweep.param_changed"
Row = tuple[str, float, int, int]


class ServerBackend:
    batch = 1

    def __init__(self, address: str) -> None:
        self._address = address
        self._mlflow: Any = None
        self._client: Any = None
        self._known: dict[Identity, tuple[str, str]] = {}  # run id, its tag `complete`
        self._unsure: set[Identity] = set()  # asked for, no answer: may be there
        self.experiment_id = ""

    def open(self, experiment: str, sweep: Entry) -> None:
        self._sweep = sweep
        try:
            self._mlflow = import_mlflow()
            self._client = self._mlflow.MlflowClient(self._address, self._address)
            self.experiment_id = self._open_experiment(experiment)
            runs = self._find(f"tags.`{SWEEP_ID}` = '{sweep.key}'")
            self._keep_one_of_each(runs)
            parent = next((r for r in runs if identity_of(r.data.tags) == sweep.identity), None)
            self._parent = self._open_parent(parent)
        except (Refused, Unreachable):
            raise
        except Exception as error:
            raise as_ours(error) from error

    def write(self, entries: Sequence[Entry]) -> list[bool]:
        try:
            return [self._write(entry) for entry in entries]
        except Exception as error:
            raise as_ours(error) from error

    def attach(self, file: Path, folder: str | None) -> None:
        try:
            self._client.log_artifact(self._parent, str(file), folder)
        except Exception as error:
            raise as_ours(error) from error

    def finish(self, tags: Mapping[str, str]) -> None:
        try:
            self._log(self._parent, tags=tags, complete=self._sweep.complete)
            self._client.set_terminated(self._parent, self._sweep.status, now_ms())
        except Exception as error:
            raise as_ours(error) from error

    def alive(self) -> bool:
        try:
            self._client.get_experiment(self.experiment_id)
        except Exception:
            return False
        return True

    def close(self) -> None:
        pass

    def _open_experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except self._mlflow.exceptions.MlflowException:  # another was faster?
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise Refused(f"experiment {name!r} was deleted in MLflow; restore or rename it")
        return str(found.experiment_id)

    def _find(self, search: str) -> list[Any]:
        runs: list[Any] = []
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id], search, max_results=PAGE, page_token=token
            )
            runs += page
            token = page.token
            if not token:
                return runs

    def _keep_one_of_each(self, runs: Sequence[Any]) -> None:
        """Of several runs of one point the one that is complete stays."""
        for run in sorted(runs, key=lambda run: COMPLETE not in run.data.tags):
            identity = identity_of(run.data.tags)
            if identity in self._known and self._known[identity][0] != run.info.run_id:
                self._client.delete_run(run.info.run_id)
            else:
                self._known[identity] = run.info.run_id, run.data.tags.get(COMPLETE, "")

    def _open_parent(self, found: Any) -> str:
        """A parameter can't be changed once logged: what it is now becomes a tag."""
        sweep = self._sweep
        if found is None:
            run = self._client.create_run(
                self.experiment_id,
                sweep.started_ms or now_ms(),
                sweep.tags | system_tags(None),
                sweep.name,
            )
            run_id, there = run.info.run_id, {}
        else:
            run_id, there = found.info.run_id, found.data.params
            self._client.update_run(run_id, "RUNNING", sweep.name)
        new = {name: value for name, value in sweep.params.items() if name not in there}
        changed = {n: v for n, v in sweep.params.items() if there.get(n, v) != v}
        tags = {clean_name(f"{CHANGED}.{n}"): clean_text(v, MAX_TAG) for n, v in changed.items()}
        self._log(run_id, params=new, tags=sweep.tags | tags)
        self._known[sweep.identity] = run_id, ""
        return str(run_id)

    def _write(self, entry: Entry) -> bool:
        run_id, complete = self._look_up(entry.identity)
        if run_id and satisfied(entry, complete):
            return False
        started = entry.started_ms if entry.started_ms is not None else now_ms()
        ended = entry.ended_ms if entry.ended_ms is not None else started
        if run_id and lacks_series_only(entry, complete):
            self._known[entry.identity] = run_id, ""
            self._log(run_id, complete="")
            self._finish_run(run_id, entry, entry.rows(started)[len(entry.metrics) :], {})
            return True
        if run_id:
            self._client.delete_run(run_id)
            del self._known[entry.identity]
        self._unsure.add(entry.identity)
        tags = entry.tags | system_tags(self._parent)
        run = self._client.create_run(self.experiment_id, started, tags, entry.name)
        self._known[entry.identity] = run.info.run_id, ""
        self._unsure.discard(entry.identity)
        self._client.set_terminated(run.info.run_id, entry.status, ended)
        self._finish_run(run.info.run_id, entry, entry.rows(started), entry.params)
        return True

    def _look_up(self, identity: Identity) -> tuple[str, str]:
        if identity in self._unsure:
            runs = self._find(f"tags.`{SWEEP_ID}` = '{self._sweep.key}'")
            self._known.pop(identity, None)
            self._keep_one_of_each([r for r in runs if identity_of(r.data.tags) == identity])
            self._unsure.discard(identity)
        return self._known.get(identity, ("", ""))

    def _finish_run(
        self, run_id: str, entry: Entry, rows: Sequence[Row], params: Mapping[str, str]
    ) -> None:
        self._log(run_id, rows, params, complete=entry.complete)
        self._known[entry.identity] = run_id, entry.complete

    def _log(
        self,
        run_id: str,
        rows: Sequence[Row] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        complete: str | None = None,
    ) -> None:
        """In as many requests as the limits ask for; that it is complete is said with the last."""
        entities = self._mlflow.entities
        all_params = [entities.Param(*param) for param in (params or {}).items()]
        all_tags = [entities.RunTag(*tag) for tag in (tags or {}).items()]
        requests = max(
            -(-len(rows) // MAX_METRICS), -(-max(len(all_params), len(all_tags)) // MAX_OTHERS), 1
        )
        for i in range(requests):
            metrics = [entities.Metric(*row) for row in rows[i * MAX_METRICS :][:MAX_METRICS]]
            some_tags = all_tags[i * MAX_OTHERS :][:MAX_OTHERS]
            if complete is not None and i == requests - 1:
                some_tags.append(entities.RunTag(COMPLETE, complete))
            some_params = all_params[i * MAX_OTHERS :][:MAX_OTHERS]
            self._client.log_batch(run_id, metrics, some_params, some_tags, synchronous=True)
