"""From what the engine left behind to a recorded folder: what `profiles/recorded.py` reads, and steps.

meta.json        configuration as resolved, versions, hardware, the command
requests.jsonl   a line a request, in the workload's order
timeseries.csv   a row a second; row t covers (t-1, t] from the start of the workload
steps.jsonl.gz   a line a step (steps.py)
point.yaml       the point, ready to replay the recording
device.npz       the device model's step law, as the recorded engine had it
"""

from __future__ import annotations

import csv
import io
import json
from array import array
from pathlib import Path
from typing import Any

import yaml

from orchestrator.recording.spec import Recording, point_beside
from orchestrator.recording.stage import RecordingError
from orchestrator.recording.steps import FILE, Step, from_log, write_steps
from profiles.recorded import SERIES, load_recorded_run
from simulator.workloads import Workload

LAW = "device.npz"
RUN_PART = "part-1.log"  # part 0 is the warm-up's
SECOND_NS = 1_000_000_000


def assemble(recording: Recording, raw_folder: Path, out: Path, command: str) -> list[Step]:
    """Write the recorded folder `out` from what is in `raw_folder`; meta.json last."""
    raw = json.loads((raw_folder / "raw.json").read_text())
    start_ns = raw["start_ns"]
    workload = recording.prepared.workload
    check_outputs(workload, raw["requests"], recording.prepared.max_model_len)
    log = array("q", (raw_folder / RUN_PART).read_bytes())
    try:
        steps = from_log(log, start_ns)
    except ValueError as error:
        raise RecordingError(f"the log of the steps is not whole: {error}") from None
    meta = meta_json(recording, raw, command)
    out.mkdir(parents=True, exist_ok=True)
    (out / "meta.json").unlink(missing_ok=True)
    write_steps(out / FILE, steps)
    lines = (json.dumps(row) + "\n" for row in request_rows(workload, raw["requests"], start_ns))
    (out / "requests.jsonl").write_text("".join(lines))
    (out / "timeseries.csv").write_text(series_csv(raw["iterations"], start_ns))
    point = point_beside(recording, out.absolute())
    blocks = meta["kv_cache"]["num_gpu_blocks"]
    point["engine"] = {**point.get("engine", {}), "num_gpu_blocks_override": blocks}
    (out / "point.yaml").write_text(yaml.safe_dump(point, sort_keys=False))
    (out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    load_recorded_run(out)
    return steps


def check_outputs(workload: Workload, rows: list[dict[str, Any]], max_model_len: int) -> None:
    """Every request ended, with the tokens it was asked for."""
    if [row["request"] for row in rows] != list(range(len(workload))):
        raise RecordingError(f"{len(rows)} of {len(workload)} requests ended")
    for r, row in enumerate(rows):
        room = max_model_len - int(workload.num_prompt_tokens[r])
        asked = min(int(workload.num_output_tokens[r]), room)
        if row["output_tokens"] != asked:
            raise RecordingError(
                f"request {workload.request_ids[r]} ended after {row['output_tokens']} tokens, "
                f"{asked} were asked for"
            )


def request_rows(
    workload: Workload, rows: list[dict[str, Any]], start_ns: int
) -> list[dict[str, Any]]:
    """Lines of requests.jsonl. `sent_ts` is on the engine's clock: when the client sent it."""
    times = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    return [
        {
            "request_id": workload.request_ids[r],
            "input_toks": int(workload.num_prompt_tokens[r]),
            "output_toks": row["output_tokens"],
            "sent_ts": row["sent_ns"] / 1e9,
            **{name: row[name] for name in times},
            "cached_toks": row["cached_tokens"],
        }
        for r, row in enumerate(rows)
    ]


def series_csv(iterations: list[list[Any]], start_ns: int) -> str:
    """A row a second; rates sum up the iterations in it, states are the last one's."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SERIES)
    seconds = [max(1, -(-(row[0] - start_ns) // SECOND_NS)) for row in iterations]
    at = 0
    state = [0, 0, 0.0]
    for second in range(1, max(seconds, default=0) + 1):
        prompt = generated = 0
        while at < len(iterations) and seconds[at] <= second:
            _, *state, prompts, tokens = iterations[at]
            prompt, generated = prompt + prompts, generated + tokens
            at += 1
        running, waiting, usage = state
        writer.writerow([second, prompt, generated, running, waiting, round(100 * usage, 3)])
    return text.getvalue()


def meta_json(recording: Recording, raw: dict[str, Any], command: str) -> dict[str, Any]:
    """meta.json in the layout that `profiles/recorded.py` reads, and what the recorder adds."""
    point, engine = recording.point, raw["resolved"]["engine"]
    arguments = {
        **{name: value for name, value in engine.items() if name != "num_gpu_blocks"},
        "dtype": point.engine.dtype,
        "kv_cache_dtype": point.engine.kv_cache_dtype,
    }
    device_model = None
    if recording.device_model:
        prepared = recording.prepared
        device_model = {"profile": prepared.profile_id, "card": point.card.name}
    kv_cache = ("num_gpu_blocks", "block_size", "gpu_memory_utilization", "enable_prefix_caching")
    return {
        "schema_version": 1,
        "model": point.model.name,
        "vllm_version": raw["versions"]["vllm"],
        "engine_kwargs": arguments,
        "dataset_path": recording.prepared.workload.source
        if point.workload.generate is not None
        else "point.yaml",
        "num_requests": len(raw["requests"]),
        "kv_cache": {name: engine[name] for name in kv_cache},
        "resolved_config": {
            "compilation_config": raw["resolved"]["compilation_config"],
            "scheduler_config": {
                name: engine[name]
                for name in (
                    "async_scheduling",
                    "enable_chunked_prefill",
                    "long_prefill_token_threshold",
                    "max_num_batched_tokens",
                    "max_num_seqs",
                    "policy",
                    "scheduler_reserve_full_isl",
                )
            },
        },
        "versions": raw["versions"],
        "hardware": raw["hardware"],
        "recording": {
            "command": command,
            "device_model": device_model,
            "engine_arguments": recording.engine_arguments,
            "workload_content_id": recording.prepared.workload.content_id,
            "load_average": raw["load_average"],
        },
    }
