"""The device model's side of a KV connector: vLLM's own worker role, with transfers that only take time.

vLLM's OffloadingConnector moves blocks between the device and CPU memory through handlers. The ones
here copy nothing: a transfer starts when the one before it in its direction has ended and takes its
bytes divided by the bandwidth. What is moved, when it is asked for and when the scheduler learns that
it is done is vLLM's. Written for the handlers of vLLM 0.19.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec
from vllm.v1.kv_offload.worker.worker import OffloadingHandler, TransferResult
from vllm.v1.outputs import KVConnectorOutput

from orchestrator.recording.inside.law import sleep_until

# In kv_connector_extra_config: 10^9 bytes a second in each direction.
BANDWIDTH = "servesweep_bandwidth_gbps"


class Transfers(OffloadingHandler):
    """One direction."""

    def __init__(self, block_bytes: int, bytes_per_ns: float) -> None:
        self.block_bytes, self.bytes_per_ns = block_bytes, bytes_per_ns
        self.free_ns = 0
        self.under_way: dict[int, int] = {}  # job: when it ends

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        source, target = spec
        on_device = source if isinstance(source, GPULoadStoreSpec) else target
        size = len(on_device.block_ids) * self.block_bytes
        start_ns = max(monotonic_ns(), self.free_ns)
        self.free_ns = start_ns + int(size / self.bytes_per_ns)
        self.under_way[job_id] = self.free_ns
        return True

    def get_finished(self) -> list[TransferResult]:
        now = monotonic_ns()
        ended = [job for job, end_ns in self.under_way.items() if end_ns <= now]
        for job in ended:
            del self.under_way[job]
        return [TransferResult(job_id=job, success=True) for job in ended]

    def wait(self, job_ids: set[int]) -> None:
        for job in job_ids & self.under_way.keys():
            sleep_until(self.under_way[job])


class Connector:
    """vLLM's OffloadingConnector in its worker role, over `Transfers`."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, block_bytes: int) -> None:
        transfer = vllm_config.kv_transfer_config
        name, extra = transfer.kv_connector, transfer.kv_connector_extra_config
        if name != "OffloadingConnector":
            raise ValueError(f"the device model has no transfers for {name}")
        if not isinstance(extra.get(BANDWIDTH), int | float) or extra[BANDWIDTH] <= 0:
            raise ValueError(f"kv_connector_extra_config needs {BANDWIDTH}, a number above 0")
        self.connector = KVConnectorFactory.create_connector(
            vllm_config, KVConnectorRole.WORKER, kv_cache_config
        )
        worker = self.connector.connector_worker.worker
        for source, target in (
            (GPULoadStoreSpec, CPULoadStoreSpec),
            (CPULoadStoreSpec, GPULoadStoreSpec),
        ):
            worker.register_handler(source, target, Transfers(block_bytes, float(extra[BANDWIDTH])))

    def begin(self, scheduler_output: Any) -> None:
        """As a batch is submitted, in the order of vLLM's model runner."""
        metadata = scheduler_output.kv_connector_metadata
        if scheduler_output.preempted_req_ids:
            self.connector.handle_preemptions(metadata)
        self.connector.bind_connector_metadata(metadata)
        self.connector.start_load_kv(None)
        if scheduler_output.total_num_scheduled_tokens:
            self.connector.wait_for_save()
        self.connector.clear_connector_metadata()

    def finished(self, finished_req_ids: set[str]) -> KVConnectorOutput | None:
        """What has been moved since the last time."""
        sent, received = self.connector.get_finished(finished_req_ids)
        if not sent and not received:
            return None
        return KVConnectorOutput(finished_sending=sent, finished_recving=received)
