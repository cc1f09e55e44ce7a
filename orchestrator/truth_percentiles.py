"""Truth from a table of means and percentiles, with the definitions it was made by."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from orchestrator.truth_config import (
    METRIC_NAMES,
    STATISTIC_NAMES,
    MeasuredValue,
    PercentilesConfig,
    PercentileTable,
)
from orchestrator.truth_data import METRICS, STATISTICS, Truth, content_id
from profiles.checks import CsvTable
from profiles.errors import MISSING, InputError, parse_model, read_yaml
from profiles.foreign import read_file

COLUMNS = ("metric", "statistic", "value_ms")
RATES = ("requests_per_s", "output_tokens_per_s")


def percentiles_truth(config: PercentilesConfig, base: Path) -> Truth:
    """Raises InputError."""
    path = None if config.file is None else base / config.file
    source = "percentiles" if path is None else str(path)
    table = _table(config, path)
    definitions = table.definitions
    if definitions is None:
        expected = "ttft, tpot and percentile: what the numbers mean"
        raise InputError(source, "percentiles.definitions", MISSING, expected)
    given = table.model_dump()
    return Truth(
        source=source,
        kind="percentiles",
        content_id=content_id("percentiles", table.model_dump_json()),
        num_requests=None,
        metrics=_metrics(table.values or (), source),
        makespan_ms=table.makespan_ms,
        throughput={rate: given[rate] for rate in RATES if given[rate] is not None},
        num_gpu_blocks=table.num_gpu_blocks,
        start="queued_ns" if definitions.ttft == "from_queue" else "arrival_ns",
        single_tokens_in_tpot=definitions.tpot == "all_requests",
    )


def _table(config: PercentilesConfig, path: Path | None) -> PercentileTable:
    """The table with what the configuration adds to its file."""
    given = {name: getattr(config, name) for name in PercentileTable.model_fields}
    if path is None:
        return PercentileTable(**given)
    if path.suffix.lower() == ".csv":
        return PercentileTable(**{**given, "values": tuple(_csv_rows(path))})
    table = parse_model(PercentileTable, read_yaml(path), path)
    if table.values is None:
        raise InputError(path, "values", MISSING, "a list of metric, statistic, value_ms")
    stated = {name: getattr(table, name) for name in PercentileTable.model_fields}
    for name, value in given.items():
        if value is not None and stated[name] is not None:
            raise InputError(path, name, stated[name], "it once, the configuration has it as well")
    return PercentileTable(
        **{name: stated[name] if stated[name] is not None else given[name] for name in given}
    )


def _csv_rows(path: Path) -> Iterable[MeasuredValue]:
    table = CsvTable(path, read_file(path), COLUMNS)
    values = table.floats("value_ms")
    rows = zip(table.text("metric"), table.text("statistic"), values, strict=True)
    for line, (metric, statistic, value) in enumerate(rows, 2):
        row = {"metric": metric, "statistic": statistic, "value_ms": float(value)}
        yield parse_model(MeasuredValue, row, f"{path}, line {line}")


def _metrics(values: Iterable[MeasuredValue], source: str) -> dict[str, dict[str, float]]:
    metrics: dict[str, dict[str, float]] = {}
    for row in values:
        name = METRICS[METRIC_NAMES.index(row.metric)]
        statistic = STATISTICS[STATISTIC_NAMES.index(row.statistic)]
        found = metrics.setdefault(name, {})
        if statistic in found:
            expected = f"it once; it is {found[statistic]:g} already"
            raise InputError(source, f"{row.metric} {row.statistic}", row.value_ms, expected)
        found[statistic] = row.value_ms
    for name, found in metrics.items():
        ladder = [(s, found[s]) for s in STATISTICS[1:] if s in found]
        for (low, below), (high, above) in itertools.pairwise(ladder):
            if above < below:
                expected = f"at least {low} ({below:g})"
                raise InputError(source, f"{name.removesuffix('_ms')} {high}", above, expected)
    return metrics
