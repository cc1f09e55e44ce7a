"""The manifests of InfiniLM's admission study, made by rule.

    python -m benchmarks.manifests          # write sweeps/manifests/*.json
    python -m benchmarks.manifests --check  # exit 1 if a file is not what the rule gives

Two waves of requests whose prompts cycle through a list of lengths, 128 tokens each, blocks of 256.
`fixed` is the workload of the published table. The other three have half as many requests and differ
in what exact reservations give back: nothing (`aligned`: prompts end with a block, so everybody really
needs one more), some (`mixed`, the lengths of `fixed`), everything (`boundary`: a prompt begins its last
block, and the whole output fits into it).
"""

from __future__ import annotations

import argparse
import sys
from itertools import cycle, islice
from pathlib import Path

from simulator.workloads.manifest import Manifest, ManifestRequest

FOLDER = Path(__file__).resolve().parent.parent / "sweeps" / "manifests"
LENGTHS = (64, 128, 192, 256, 320, 512, 768, 1024)
MAX_TOKENS = 128
BLOCK_SIZE = 256


def two_waves(
    name: str, lengths: tuple[int, ...], sizes: tuple[int, int], num_blocks: int
) -> Manifest:
    """`sizes` requests in the two waves; each wave starts at the first of `lengths`."""
    requests = [
        ManifestRequest(
            id=f"wave{wave}-{i:04d}", wave=wave, prompt_tokens=length, max_tokens=MAX_TOKENS
        )
        for wave, size in enumerate(sizes, start=1)
        for i, length in enumerate(islice(cycle(lengths), size))
    ]
    return Manifest(
        name=name, block_size=BLOCK_SIZE, num_blocks=num_blocks, requests=tuple(requests)
    )


def manifests() -> list[Manifest]:
    return [
        two_waves("fixed", LENGTHS, (256, 128), 864),
        two_waves("aligned", (256,), (128, 64), 320),
        two_waves("mixed", LENGTHS, (128, 64), 432),
        two_waves("boundary", (257,), (128, 64), 384),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.manifests", description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    wrong = 0
    for manifest in manifests():
        path = FOLDER / f"{manifest.name}.json"
        if not arguments.check:
            path.write_text(manifest.text(), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != manifest.text():
            print(f"{path} is not what the rule gives", file=sys.stderr)
            wrong += 1
            continue
        print(f"{path.name}: {len(manifest.requests)} requests, content {manifest.content_id}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
