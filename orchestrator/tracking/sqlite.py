"""The embedded database: whole batches of runs in one transaction each.

MLflow makes the schema, the experiment and the artifacts through its public client. Runs are
inserted into its tables directly, because that is ten times faster than its client; the tables of
runs, tags, parameters and metrics have kept their columns since MLflow 2.0, are checked here
before anything is written, and a test compares such a run with one the client wrote. With columns
unknown here the client is used.

A run's id follows from experiment, sweep and point, and a run is written whole or not at all, so
that neither a crash nor a second writer can leave a double.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.tracking.backend import (
    LayoutUnknown,
    Refused,
    Unreachable,
    as_ours,
    import_mlflow,
    now_ms,
    system_tags,
)
from orchestrator.tracking.database import (
    check_layout,
    connect,
    database_lock,
    make_database,
)
from orchestrator.tracking.entry import (
    COMPLETE,
    POINT_ID,
    ROLE,
    RUN_NAME,
    SWEEP_ID,
    Entry,
    Identity,
    satisfied,
)
from orchestrator.tracking.names import clean_name

NOTE = "mlflow.note.content"  # what a person wrote about a run
ARTIFACTS = "mlruns"
UPSERT_RUN = """
insert into runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status,
                  start_time, end_time, deleted_time, source_version, lifecycle_stage,
                  artifact_uri, experiment_id)
values (?, ?, 'UNKNOWN', '', '', ?, ?, ?, ?, null, '', 'active', ?, ?)
on conflict (run_uuid) do update set name = excluded.name, status = excluded.status,
    start_time = excluded.start_time, end_time = excluded.end_time, deleted_time = null,
    lifecycle_stage = 'active'
"""
UPSERT_TAG = """
insert into tags (run_uuid, key, value) values (?, ?, ?)
on conflict (key, run_uuid) do update set value = excluded.value
"""
RUNS_OF_SWEEP = f"""
select role.value, coalesce(point.value, ''), r.run_uuid from runs r
join tags sweep on sweep.run_uuid = r.run_uuid and sweep.key = '{SWEEP_ID}' and sweep.value = ?
join tags role on role.run_uuid = r.run_uuid and role.key = '{ROLE}'
left join tags point on point.run_uuid = r.run_uuid and point.key = '{POINT_ID}'
where r.experiment_id = ? and r.lifecycle_stage = 'active'
order by r.start_time desc, r.run_uuid
"""


class SqliteBackend:
    batch = 50

    def __init__(self, address: str, path: Path) -> None:
        self._address, self._path = address, path
        self._connection: sqlite3.Connection | None = None
        self._client: Any = None
        self._known: dict[Identity, str] = {}
        self.experiment_id = ""

    def open(self, experiment: str, sweep: Entry) -> None:
        mlflow = import_mlflow()  # before others wait for the lock
        with database_lock(self._path):
            found = self._open_experiment(mlflow, experiment)
            self._connection = self._connection or connect(self._path)
        if found.lifecycle_stage != "active":
            raise Refused(f"experiment {experiment!r} was deleted in MLflow; restore or rename it")
        self.experiment_id = found.experiment_id
        self._artifacts = found.artifact_location.rstrip("/")
        self._experiment, self._sweep = experiment, sweep
        if any(c in self._artifacts for c in "?#"):
            raise LayoutUnknown(f"artifact location {self._artifacts!r}")
        check_layout(self._connection)
        with self._transaction() as connection:
            rows = connection.execute(RUNS_OF_SWEEP, (sweep.key, int(self.experiment_id)))
            self._known = {(role, point): run_id for role, point, run_id in rows}
            self._write_parent(connection)

    def _open_experiment(self, mlflow: Any, name: str) -> Any:
        try:
            make_database(self._path, mlflow)
            self._client = mlflow.MlflowClient(self._address, self._address)
            found = self._client.get_experiment_by_name(name)
            if found is None:
                location = (self._path.parent / ARTIFACTS / clean_name(name)).as_uri()
                found = self._client.get_experiment(self._client.create_experiment(name, location))
        except Exception as error:
            raise as_ours(error) from error
        return found

    def write(self, entries: Sequence[Entry]) -> list[bool]:
        with self._transaction() as connection:
            return [self._write(connection, entry) for entry in entries]

    def attach(self, file: Path, folder: str | None) -> None:
        try:
            self._client.log_artifact(self._run_id(self._sweep.identity), str(file), folder)
        except OSError as error:
            raise Unreachable(str(error)) from error

    def finish(self, tags: Mapping[str, str]) -> None:
        run_id = self._run_id(self._sweep.identity)
        with self._transaction() as connection:
            all_tags = {**tags, COMPLETE: self._sweep.complete}
            connection.executemany(UPSERT_TAG, [(run_id, *tag) for tag in all_tags.items()])
            connection.execute(
                "update runs set status = ?, end_time = ? where run_uuid = ?",
                (self._sweep.status, now_ms(), run_id),
            )

    def alive(self) -> bool:
        return False  # whatever goes wrong with a file is tried again until the deadline

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("pragma wal_checkpoint(truncate)")
            self._connection.close()

    def _run_id(self, identity: Identity) -> str:
        text = "\0".join([self._experiment, self._sweep.key, *identity])
        new = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
        return self._known.setdefault(identity, new)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        assert self._connection is not None
        try:
            self._connection.execute("begin immediate")
            try:
                yield self._connection
                self._connection.execute("commit")
            except BaseException:
                self._connection.rollback()
                raise
        except sqlite3.OperationalError as error:
            raise Unreachable(f"{self._path.name}: {error}") from error
        except (sqlite3.Error, OverflowError) as error:
            raise Refused(f"{self._path.name}: {error}") from error

    def _write_parent(self, connection: sqlite3.Connection) -> None:
        """Its tags are added to those there; its start stays that of the first time."""
        sweep, run_id = self._sweep, self._run_id(self._sweep.identity)
        row = connection.execute(
            "select start_time from runs where run_uuid = ?", (run_id,)
        ).fetchone()
        started = row[0] if row else sweep.started_ms or now_ms()
        self._upsert_run(connection, sweep, run_id, "RUNNING", started, None)
        self._upsert_tags(connection, sweep, run_id, None)
        connection.execute("delete from params where run_uuid = ?", (run_id,))
        self._insert_params(connection, sweep, run_id)
        connection.execute("delete from tags where run_uuid = ? and key = ?", (run_id, COMPLETE))

    def _write(self, connection: sqlite3.Connection, entry: Entry) -> bool:
        run_id = self._run_id(entry.identity)
        row = connection.execute(
            "select value from tags join runs using (run_uuid)"
            " where key = ? and run_uuid = ? and lifecycle_stage = 'active'",
            (COMPLETE, run_id),
        ).fetchone()
        if row and satisfied(entry, row[0]):
            return False
        for table in ("metrics", "latest_metrics", "params"):
            connection.execute(f"delete from {table} where run_uuid = ?", (run_id,))
        connection.execute("delete from tags where run_uuid = ? and key <> ?", (run_id, NOTE))

        started = entry.started_ms if entry.started_ms is not None else now_ms()
        ended = entry.ended_ms if entry.ended_ms is not None else started
        self._upsert_run(connection, entry, run_id, entry.status, started, ended)
        self._upsert_tags(connection, entry, run_id, self._run_id(self._sweep.identity))
        self._insert_params(connection, entry, run_id)
        rows = entry.rows(started)
        latest = {row[0]: row for row in rows}  # of a series its last second
        for table, values in (("metrics", rows), ("latest_metrics", list(latest.values()))):
            connection.executemany(
                f"insert into {table} (key, value, timestamp, step, is_nan, run_uuid)"
                f" values (?, ?, ?, ?, 0, '{run_id}')",
                values,
            )
        return True

    def _upsert_run(
        self,
        connection: sqlite3.Connection,
        entry: Entry,
        run_id: str,
        status: str,
        started: int,
        ended: int | None,
    ) -> None:
        user, artifacts = system_tags(None)["mlflow.user"], f"{self._artifacts}/{run_id}/artifacts"
        values = (run_id, entry.name, user, status, started, ended, artifacts)
        connection.execute(UPSERT_RUN, (*values, int(self.experiment_id)))

    def _upsert_tags(
        self, connection: sqlite3.Connection, entry: Entry, run_id: str, parent: str | None
    ) -> None:
        tags = entry.tags | system_tags(parent) | {RUN_NAME: entry.name, COMPLETE: entry.complete}
        connection.executemany(UPSERT_TAG, [(run_id, *tag) for tag in tags.items()])

    def _insert_params(self, connection: sqlite3.Connection, entry: Entry, run_id: str) -> None:
        connection.executemany(
            "insert into params (run_uuid, key, value) values (?, ?, ?)",
            [(run_id, *param) for param in entry.params.items()],
        )
