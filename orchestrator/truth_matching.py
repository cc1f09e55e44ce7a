"""Which simulated request is which measured one, and how far apart the two are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orchestrator.truth_data import HEADLINE, TruthRequests
from profiles.bundle import Floats, Ints

SHOWN = 3
FEW = 0.9  # below this share of matched requests a comparison says so


class SimulatedRequests(NamedTuple):
    """Columns of a result's requests; times in ms, NaN for what never happened."""

    table: pa.Table
    prompt_tokens: Ints
    requested_tokens: Ints
    output_tokens: Ints
    completed: NDArray[np.bool_]  # finished, with every token asked for
    finished: NDArray[np.bool_]
    ttft_ms: Floats
    tpot_ms: Floats
    latency_ms: Floats

    def name(self, index: int) -> str:
        return repr(self.table["request_id"][index].as_py())


@dataclass(frozen=True)
class RequestComparison:
    """Requests matched one to one; `unmatched` are simulated, `unmatched_truth` measured ones."""

    matched: int
    unmatched: int
    unmatched_truth: int
    matched_by: Literal["id", "position"]
    examples: tuple[str, ...] = ()
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    """metric -> median_abs_pct, p90_abs_pct, median_abs_ms, p90_abs_ms, sum_abs_pct."""


def simulated_requests(table: pa.Table, start: str) -> SimulatedRequests:
    """The requests with TTFT and latency counted from the column `start`."""
    times = (start, "first_token_ns", "last_token_ns")
    begin, first, last = (table[name].to_numpy() for name in times)  # NaN where null
    output = table["output_tokens"].to_numpy()
    requested = table["requested_output_tokens"].to_numpy()
    finished = table["finished"].to_numpy()
    return SimulatedRequests(
        table=table,
        prompt_tokens=table["prompt_tokens"].to_numpy(),
        requested_tokens=requested,
        output_tokens=output,
        completed=finished & (output >= requested),
        finished=finished,
        ttft_ms=(first - begin) / 1e6,
        tpot_ms=(last - first) / np.maximum(1, output - 1) / 1e6,
        latency_ms=(last - begin) / 1e6,
    )


class Matching(NamedTuple):
    """Of each simulated request its partner among the measured ones, an index or -1 for none."""

    partner: Ints
    same: NDArray[np.bool_]  # with equal lengths
    both: NDArray[np.bool_]  # and both finished: these are compared
    matched_by: Literal["id", "position"]


def match_requests(simulated: SimulatedRequests, truth: TruthRequests) -> Matching:
    """Requests match by id, or by position if that matches more, with equal lengths."""
    by_id = _partners_by_id(simulated, truth)
    partner, same = by_id, _same_lengths(simulated, truth, by_id)
    matched_by: Literal["id", "position"] = "id"
    if same.sum() < min(len(by_id), len(truth)):
        by_position = np.arange(len(by_id))
        by_position[len(truth) :] = -1
        same_place = _same_lengths(simulated, truth, by_position)
        if same_place.sum() > same.sum() or (truth.ids is None):
            partner, same, matched_by = by_position, same_place, "position"
    both = same & simulated.completed
    both &= ~truth.failed[partner]
    return Matching(partner, same, both, matched_by)


def compare_requests(simulated: SimulatedRequests, truth: TruthRequests) -> RequestComparison:
    """What matches, and how far it is apart."""
    partner, same, both, matched_by = match_requests(simulated, truth)
    ours = np.flatnonzero(both)
    theirs = partner[ours]
    return RequestComparison(
        matched=len(ours),
        unmatched=len(partner) - len(ours),
        unmatched_truth=len(truth) - len(ours),
        matched_by=matched_by,
        examples=_examples(simulated, truth, partner, same, both),
        errors=_errors(simulated, truth, ours, theirs),
    )


def _partners_by_id(simulated: SimulatedRequests, truth: TruthRequests) -> Ints:
    """For each simulated request the index of its partner, -1 for none."""
    if truth.ids is None:
        return np.full(len(simulated.prompt_tokens), -1)
    ids = simulated.table["request_id"].combine_chunks()
    found = pc.index_in(ids, value_set=truth.ids)
    partners: Ints = found.fill_null(-1).to_numpy().astype(np.int64)
    return partners


def _same_lengths(
    simulated: SimulatedRequests, truth: TruthRequests, partner: Ints
) -> NDArray[np.bool_]:
    """Where the partner's lengths are those asked for; a failed one's output is not known."""
    outputs = truth.num_output_tokens[partner]
    same: NDArray[np.bool_] = (
        (partner >= 0)
        & (truth.num_prompt_tokens[partner] == simulated.prompt_tokens)
        & ((outputs == simulated.requested_tokens) | truth.failed[partner])
    )
    return same


def _examples(
    simulated: SimulatedRequests,
    truth: TruthRequests,
    partner: Ints,
    same: NDArray[np.bool_],
    both: NDArray[np.bool_],
) -> tuple[str, ...]:
    """The first requests of either side without a match, with the reason."""
    shown = []
    for index in np.flatnonzero(~both)[:SHOWN]:
        other = int(partner[index])
        name = f"simulated {simulated.name(int(index))}"
        if other < 0:
            shown.append(f"{name}: no such request was measured")
        elif not same[index]:
            lengths = f"{simulated.prompt_tokens[index]} + {simulated.requested_tokens[index]}"
            theirs = f"{truth.num_prompt_tokens[other]} + {truth.num_output_tokens[other]}"
            shown.append(f"{name}: {lengths} tokens, measured {truth.name(other)}: {theirs}")
        elif not simulated.completed[index]:
            shown.append(f"{name}: refused or cut short in the simulation")
        else:
            shown.append(f"{name}: failed in the measurement")
    if len(shown) < SHOWN:
        alone = np.ones(len(truth), bool)
        alone[partner[partner >= 0]] = False
        for index in np.flatnonzero(alone)[: SHOWN - len(shown)]:
            why = "failed in the measurement" if truth.failed[index] else "not simulated"
            shown.append(f"measured {truth.name(int(index))}: {why}")
    return tuple(shown)


def _errors(
    simulated: SimulatedRequests, truth: TruthRequests, ours: Ints, theirs: Ints
) -> dict[str, dict[str, float]]:
    errors = {}
    for metric in HEADLINE:
        measured = getattr(truth, metric)[theirs]
        apart = np.abs(getattr(simulated, metric)[ours] - measured)
        some = measured > 0
        if not some.any():
            continue
        median, p90 = _median_and_p90(apart[some] / measured[some] * 100)
        median_ms, p90_ms = _median_and_p90(apart)
        errors[metric] = {
            "median_abs_pct": median,
            "p90_abs_pct": p90,
            "median_abs_ms": median_ms,
            "p90_abs_ms": p90_ms,
            "sum_abs_pct": float(apart.sum() / measured.sum() * 100),
        }
    return errors


def _median_and_p90(values: Floats) -> tuple[float, float]:
    """numpy's percentiles 50 and 90, without what they cost on a few hundred values."""
    ordered = np.sort(values)
    found = []
    for share in (0.5, 0.9):
        position = share * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        below = float(ordered[low])
        found.append(below + (position - low) * (float(ordered[high]) - below))
    return found[0], found[1]
