"""`servesweep truth record`: one point on the real vLLM."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from orchestrator.recording.folder import LAW, assemble
from orchestrator.recording.inside.files import save_latency
from orchestrator.recording.spec import Recording, kv_cache_gib
from orchestrator.recording.stage import check_python, run_inside
from orchestrator.recording.steps import Step
from simulator.step_tables import new_outside

WARM_UP_LIMIT = 2048


@dataclass(frozen=True)
class Recorded:
    folder: Path
    steps: list[Step]

    def overview(self) -> str:
        used = [step for step in self.steps if step.sched]
        preemptions = sum(len(step.preempted) for step in self.steps)
        seconds = max(step.end_ns for step in used) / 1e9
        return f"{len(used)} steps in {seconds:.1f} s, {preemptions} preemptions"


def record(
    recording: Recording, python: Path, out: Path, *, command: str, timeout_s: float
) -> Recorded:
    """Raises InputError for a wrong environment, RecordingError if vLLM fails."""
    check_python(python)
    with tempfile.TemporaryDirectory(prefix="servesweep-") as temporary:
        raw = Path(temporary)
        environment = prepare_job(recording, raw)
        run_inside(python, "serve", raw / "job.json", environment, timeout_s)
        steps = assemble(recording, raw, out, command)
        if recording.device_model:
            shutil.copyfile(raw / LAW, out / LAW)
    return Recorded(out, steps)


def prepare_job(recording: Recording, raw: Path) -> dict[str, str]:
    """Write what the job needs to `raw`. Returns the environment variables that it reads."""
    model = raw / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(recording.model_json))
    recording.requests.save(raw / "workload.npz")
    prepared = recording.prepared
    environment = {
        "SERVESWEEP_STEP_LOG": str(raw),
        "SERVESWEEP_WORKLOAD": str(raw / "workload.npz"),
        "VLLM_CPU_KVCACHE_SPACE": str(1 if recording.device_model else kv_cache_gib(recording)),
    }
    if recording.device_model:
        save_latency(raw / LAW, prepared.latency, new_outside(prepared.latency))
        environment |= {
            "SERVESWEEP_LATENCY": str(raw / LAW),
            "SERVESWEEP_ASYNC_SCHEDULING": str(int(prepared.overhead.async_scheduling)),
            "SERVESWEEP_NUM_GPU_BLOCKS": str(prepared.capacity.num_gpu_blocks),
        }
    pool = (prepared.capacity.num_gpu_blocks - 1) * prepared.settings.block_size
    job = {
        "workload": str(raw / "workload.npz"),
        "device_model": recording.device_model,
        "async_scheduling": prepared.overhead.async_scheduling,
        "engine_arguments": {"model": str(model), **recording.engine_arguments},
        "expected": recording.expected,
        "longest_warm_up": min(prepared.max_model_len, pool, WARM_UP_LIMIT),
    }
    (raw / "job.json").write_text(json.dumps(job))
    return environment
