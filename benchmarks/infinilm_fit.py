"""Makes the modelled profile of TinyLlama-1.1B on an RTX 4090 D, and fits its three constants.

    python -m benchmarks.infinilm_fit           # fit again and compare with what is committed
    python -m benchmarks.infinilm_fit --write   # and write sweeps/modelled/RTX4090D/...

From the data sheet: 114 SMs at 2.52 GHz boost with 512 dense 16-bit FLOP a clock (32-bit sums) make
147.09 TFLOP/s; 384 bits of GDDR6X at 21 Gbit/s make 1008 GB/s; 24 GB.

Three constants are free: the share of the peak that matrix products reach, and the host's time per
step and per request. They are fitted to the legacy row of the published table (wave-2 TTFT p50 and
p95, output throughput) and to nothing else: three numbers for three constants. The exact rows are left
for benchmarks.infinilm to predict.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.infinilm import PUBLISHED, SWEEP, metrics, serving_point
from benchmarks.roofline import DataSheet, Roofline, write_tables
from profiles.errors import read_yaml
from profiles.model import ModelConfig

SHEET = DataSheet("RTX4090D", flops=114 * 512 * 2.52e9, bandwidth=384 / 8 * 21e9)
FIRST_GUESS = (0.5, 10.0, 0.1)
DIGITS = (4, 3, 5)
CONSTANTS = ("compute_share", "host_ms_per_step", "host_ms_per_request")
Constants = dict[str, float]


def profile_folder() -> Path:
    return SWEEP.parent / str(read_yaml(SWEEP)["base"]["profile"]["bundle"])


def model() -> ModelConfig:
    return serving_point("legacy").model


def meta(constants: Constants) -> dict[str, Any]:
    """What meta.yaml says of where the times come from."""
    return {
        "modelled": "from the card's data sheet, not measured",
        "data_sheet": {
            "card": "NVIDIA GeForce RTX 4090 D, 24 GB",
            "from": "114 SMs x 512 FLOP x 2.52 GHz boost; 384 bit GDDR6X at 21 Gbit/s",
            "tensor_flops": SHEET.flops,
            "bandwidth_bytes_per_s": SHEET.bandwidth,
        },
        "constants": dict(constants),
        "fitted_to": "the legacy row of InfiniLM's published table; see benchmarks/infinilm_fit.py",
    }


def write_profile(folder: Path, constants: Constants) -> None:
    roofline = Roofline(model(), SHEET, constants["compute_share"])
    write_tables(folder, roofline, meta(constants))


def legacy_row(constants: Constants, folder: Path) -> NDArray[np.float64]:
    """What the constants predict for the row they are fitted to."""
    from simulator import simulate

    write_profile(folder, constants)
    point = serving_point(
        "legacy",
        profile={"bundle": str(folder)},
        overhead={name: constants[name] for name in CONSTANTS[1:]},
    )
    return np.array(metrics(simulate(point).summary))


def fit() -> Constants:
    """The constants, rounded. Deterministic: the same simulations from the same first guess."""
    target = np.array(PUBLISHED["legacy"])
    with tempfile.TemporaryDirectory() as scratch:

        def error(logs: NDArray[np.float64]) -> NDArray[np.float64]:
            constants = dict(zip(CONSTANTS, np.exp(logs).tolist(), strict=True))
            folder = Path(scratch) / repr(constants["compute_share"]) / "bf16"
            return np.asarray(np.log(legacy_row(constants, folder) / target))

        found = least_squares(error, np.log(FIRST_GUESS), diff_step=0.02)
    values = np.exp(found.x).tolist()
    return {n: round(v, d) for n, v, d in zip(CONSTANTS, values, DIGITS, strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.infinilm_fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    constants = fit()
    folder = profile_folder()
    if arguments.write:
        write_profile(folder, constants)
    with tempfile.TemporaryDirectory() as scratch:
        row = legacy_row(constants, Path(scratch) / "bf16")
    for name, value in constants.items():
        print(f"{name}: {value}")
    for name, ours, theirs in zip(("p50", "p95", "tok/s"), row, PUBLISHED["legacy"], strict=True):
        print(f"legacy {name}: {ours:.4f}, published {theirs} ({(ours / theirs - 1) * 100:+.3f} %)")
    committed = read_yaml(folder / "meta.yaml")["constants"] if folder.is_dir() else None
    overhead = read_yaml(SWEEP)["base"]["overhead"]
    wrong = [
        f"{where}: {found}, fitted {expected}"
        for where, found, expected in (
            (folder / "meta.yaml", committed, constants),
            (SWEEP, overhead, {name: constants[name] for name in CONSTANTS[1:]}),
        )
        if found != expected
    ]
    print("\n".join(wrong) or "the committed profile and sweep hold these constants")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
