"""How a model is cut over ranks: which layers a pipeline stage has, what one rank holds."""

from __future__ import annotations

from profiles.model import ModelConfig, Shard
from simulator.config import EngineConfig


def stage_layers(num_layers: int, stages: int) -> list[tuple[int, int]]:
    """(first, end) of each stage's transformer blocks, as vLLM cuts them.

    Blocks left over go to the stages before the last one, which has the head as well; to the middle
    ones first.
    """
    counts = [num_layers // stages] * stages
    for i in range(2, num_layers % stages + 2):
        counts[-i] += 1
    ends = [sum(counts[: i + 1]) for i in range(stages)]
    return [(end - count, end) for end, count in zip(ends, counts, strict=True)]


def shards(
    model: ModelConfig, engine: EngineConfig, expert_ranks: int | None = None
) -> list[Shard]:
    """What a rank of each pipeline stage holds.

    `expert_ranks` are those that share the experts under expert parallelism, None: the engine's own.
    """
    ranks = engine.tensor_parallel_size
    experts = (expert_ranks or ranks) if engine.enable_expert_parallel and model.is_moe else 1
    return [
        Shard(tensor_parallel=ranks, expert_parallel=experts, layers=layers)
        for layers in stage_layers(model.num_hidden_layers, engine.pipeline_parallel_size)
    ]
