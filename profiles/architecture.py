"""The order of layers of a model family, as data: `architectures/<model_type>.yaml`.

The names of the layers are those of the measured tables. A block is pre_attn, post_attn and one of
mlp_dense and mlp_moe; prologue and head run once a step.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from profiles.errors import FieldError, InputError, parse_model, read_yaml

FOLDER = Path(__file__).parent / "architectures"

Table = Literal["dense", "per_sequence", "attention", "moe"]
SECTIONS = ("prologue", "pre_attn", "post_attn", "mlp_dense", "mlp_moe", "head")
ALL_REDUCE = "all_reduce"
BLOCK_SECTIONS = ("pre_attn", "post_attn", "mlp_dense", "mlp_moe")


class Architecture(BaseModel):
    """Which layers one step runs, in order, and which table each is measured in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    prologue: tuple[str, ...]
    pre_attn: tuple[str, ...]
    post_attn: tuple[str, ...]
    mlp_dense: tuple[str, ...] = ()
    mlp_moe: tuple[str, ...] = ()
    head: tuple[str, ...]
    tables: dict[Table, tuple[str, ...]]
    tp_stable: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Architecture:
        measured = [layer for layers in self.tables.values() for layer in layers]
        for section in SECTIONS:
            for layer in getattr(self, section):
                if measured.count(layer) != 1:
                    raise FieldError(section, layer, "a layer named in exactly one of tables")
        for layer in self.tp_stable:
            if layer not in measured:
                raise FieldError("tp_stable", layer, f"one of {', '.join(measured)}")
        return self

    def table_of(self, layer: str) -> Table:
        """The table that holds the measured times of `layer`."""
        return next(table for table, layers in self.tables.items() if layer in layers)

    def layers(self, table: Table) -> tuple[str, ...]:
        """The layers measured in `table` that a step runs, each once, in order of first use."""
        used = dict.fromkeys(layer for section in SECTIONS for layer in getattr(self, section))
        return tuple(layer for layer in used if layer in self.tables.get(table, ()))

    def block(self, table: Table) -> tuple[str, ...]:
        """The layers of one block measured in `table`, repeated as often as they run."""
        run = [layer for section in BLOCK_SECTIONS for layer in getattr(self, section)]
        return tuple(layer for layer in run if layer in self.tables.get(table, ()))

    def once(self, table: Table) -> tuple[str, ...]:
        """The layers before and after the blocks measured in `table`."""
        run = (*self.prologue, *self.head)
        return tuple(layer for layer in run if layer in self.tables.get(table, ()))

    def with_all_reduce(self, embedding: bool = True) -> Architecture:
        """The same on one of several tensor-parallel ranks, as vLLM runs it.

        Ranks add up what they have after the embedding, after attention's output and after the MLP.
        Without `embedding` not after the embedding, which LLMServingSim leaves out.
        """
        if ALL_REDUCE in self.tables.get("dense", ()):
            return self

        def after(layers: tuple[str, ...], layer: str) -> tuple[str, ...]:
            at = layers.index(layer) + 1
            return (*layers[:at], ALL_REDUCE, *layers[at:])

        return self._changed(
            prologue=after(self.prologue, "embedding") if embedding else self.prologue,
            post_attn=after(self.post_attn, "o_proj"),
            mlp_dense=after(self.mlp_dense, "down_proj") if self.mlp_dense else (),
            mlp_moe=after(self.mlp_moe, "moe") if self.mlp_moe else (),
            tables={**self.tables, "dense": (*self.tables["dense"], ALL_REDUCE)},
        )

    def with_experts_by_tokens(self) -> Architecture:
        """The same where the expert block is measured over tokens, with a routing of its own."""
        if not self.tables.get("moe"):
            return self
        tables = {name: layers for name, layers in self.tables.items() if name != "moe"}
        dense = (*self.tables["dense"], *self.tables["moe"])
        return self._changed(tables={**tables, "dense": dense})

    def without_experts(self) -> Architecture:
        """The same but for the expert block and what ranks exchange after it."""
        if not self.mlp_moe:
            return self
        at = self.mlp_moe.index("moe")
        rest = self.mlp_moe[at + 1 :]
        rest = rest[1:] if rest[:1] == (ALL_REDUCE,) else rest
        return self._changed(mlp_moe=(*self.mlp_moe[:at], *rest))

    def _changed(self, **changes: Any) -> Architecture:
        """Validated, which model_copy is not."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return Architecture(**{**fields, **changes})

    @property
    def is_whole_step(self) -> bool:
        """Whether a whole step was measured as one layer, of one model and no other."""
        return not self.layers("dense") and not self.layers("per_sequence")

    @property
    def is_moe(self) -> bool:
        return bool(self.mlp_moe)


def known_architectures() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def architecture_path(name: str, source: str | Path = "architecture") -> Path:
    """The file of architecture `name`; `source` is the file that asked for it."""
    if name not in known_architectures():
        expected = f"one of {', '.join(known_architectures())}"
        raise InputError(source, "architecture", name, expected)
    return FOLDER / f"{name}.yaml"


@cache
def _read(path: Path) -> Architecture:
    return parse_model(Architecture, {"name": path.stem, **read_yaml(path)}, path)


def load_architecture(name: str, source: str | Path = "architecture") -> Architecture:
    """The architecture `name`; `source` is the file that asked for it."""
    return _read(architecture_path(name, source))
