"""A manifest: one fixed workload in waves, written out request by request, known by its content.

Whatever works on a manifest (a test, a microbenchmark, a simulation) takes the same requests from the
same file, and results name the content they were made with. The first wave arrives at once; a later
one when every request of the waves before it has its first token.

    {"name": "...", "block_size": 256, "num_blocks": 864, "content_id": "...",
     "requests": [{"id": "wave1-000", "wave": 1, "prompt_tokens": 64, "max_tokens": 128}, ...]}

`block_size` and `num_blocks` are the pool it was made for; a point says itself which pool it has.
`max_tokens` is what a request asks for, `output_tokens` what it gets, which is the same unless given.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from profiles.errors import FieldError, InputError, parse_model
from profiles.foreign import json_object, read_file
from simulator.workloads.distributions import Settings
from simulator.workloads.workload import Workload

Tokens = Annotated[int, Field(ge=1, le=1 << 30)]


class ManifestRequest(Settings):
    id: Annotated[str, Field(min_length=1, max_length=200)]
    wave: Annotated[int, Field(ge=1, le=1000)]
    prompt_tokens: Tokens
    max_tokens: Tokens
    output_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _no_more_than_asked(self) -> Self:
        if self.output_tokens is not None and self.output_tokens > self.max_tokens:
            expected = f"at most max_tokens ({self.max_tokens})"
            raise FieldError("output_tokens", self.output_tokens, expected)
        return self

    @property
    def num_output_tokens(self) -> int:
        return self.max_tokens if self.output_tokens is None else self.output_tokens


class Manifest(Settings):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    block_size: Annotated[int, Field(ge=1, le=1 << 22)]
    num_blocks: Annotated[int, Field(ge=1, le=100_000_000)]
    requests: Annotated[tuple[ManifestRequest, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _in_waves(self) -> Self:
        seen: set[str] = set()
        before = 0
        for i, request in enumerate(self.requests):
            if request.id in seen:
                raise FieldError(f"requests[{i}].id", request.id, "an id of its own")
            seen.add(request.id)
            if request.wave not in (before, before + 1) or request.wave == 0:
                expected = f"{before} or {before + 1}" if before else "1"
                raise FieldError(f"requests[{i}].wave", request.wave, f"{expected}: wave by wave")
            before = request.wave
        return self

    @property
    def content_id(self) -> str:
        """sha256 over everything the manifest says."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def wave(self, wave: int) -> tuple[ManifestRequest, ...]:
        return tuple(request for request in self.requests if request.wave == wave)

    def workload(self) -> Workload:
        """Its requests, in order. Prompts have nothing in common."""
        n = len(self.requests)
        return Workload(
            request_ids=[request.id for request in self.requests],
            arrival_ns=np.zeros(n, np.int64),
            num_prompt_tokens=np.array([r.prompt_tokens for r in self.requests]),
            num_output_tokens=np.array([r.num_output_tokens for r in self.requests]),
            priority=np.zeros(n, np.int32),
            session_parent=np.full(n, -1, np.int32),
            tool_ns=np.zeros(n, np.int64),
            token_offsets=np.zeros(n + 1, np.int64),
            token_ids=np.zeros(0, np.int32),
            chunk_size=1,
            source=f"manifest {self.name}",
            max_tokens=np.array([r.max_tokens for r in self.requests]),
            wave=np.array([r.wave - 1 for r in self.requests]),
            manifest_id=self.content_id,
        )

    def text(self) -> str:
        """As a file: a request a line, and the content id that `load_manifest` checks."""
        head = self.model_dump(mode="json", exclude={"requests"}) | {"content_id": self.content_id}
        lines = [json.dumps(r.model_dump(mode="json", exclude_none=True)) for r in self.requests]
        fields = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
        return "{\n" + fields + ',\n "requests": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest. Raises InputError, also when it is not the content it says."""
    path = Path(path)
    data: dict[str, Any] = dict(json_object(read_file(path), path))
    said = data.pop("content_id", None)
    manifest = parse_model(Manifest, data, path)
    if said != manifest.content_id:
        expected = f"{manifest.content_id}, the content of this file"
        raise InputError(path, "content_id", said, expected)
    return manifest
