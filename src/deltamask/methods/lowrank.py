"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) in a federation: what its variants share.

A weight W becomes W + alpha / rank * B A, of which A (rank x in) starts at random and B (out x rank) at zero. The
adapters are added to the weights in front of each forward pass, so that any module can carry them, fused query, key
and value projections included; libraries that wrap layers know those of transformers alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deltamask.errors import ConfigError
from deltamask.masking import MaskedWeight
from deltamask.methods.compressed import Compressed
from deltamask.sampling import derive, uniforms
from deltamask.task import Task
from deltamask.updates.base import Update
from deltamask.updates.plain import Plain

__all__ = ["LowRank", "Projection", "projections"]

_QUERY_VALUE = {"q", "v", "query", "value", "q_proj", "v_proj", "q_proj_weight", "v_proj_weight", "to_q", "to_v"}
_FUSED = {"qkv", "in_proj", "in_proj_weight", "query_key_value"}


@dataclass(frozen=True)
class Projection:
    """A weight that carries an adapter, or some of its rows."""

    name: str
    first: int
    rows: int
    columns: int


def projections(layers: Iterable[MaskedWeight], targets: str) -> list[Projection]:
    """The matrices that ``targets`` names: ``q,v`` for query and value projections, or patterns of weight names.

    Query and value are found by the names that libraries give them, and as the outer thirds of a fused projection.
    """
    matrices = [w for w in layers if len(w.shape) == 2]
    found = []
    if targets == "q,v":
        for w in matrices:
            rows, columns = w.shape
            owner = w.name.removesuffix(".weight").rpartition(".")[2]
            if owner in _QUERY_VALUE:
                found.append(Projection(w.name, 0, rows, columns))
            elif owner in _FUSED and rows % 3 == 0:
                third = rows // 3
                found += [Projection(w.name, first, third, columns) for first in (0, 2 * third)]
    else:
        patterns = [p.strip() for p in targets.split(",")]
        found = [Projection(w.name, 0, *w.shape) for w in matrices if any(fnmatchcase(w.name, p) for p in patterns)]
    if not found:
        have = ", ".join(w.name for w in matrices[:4]) or "none"
        raise ConfigError(
            f"lora.targets={targets!r} names none of the {len(matrices)} matrices in the chosen blocks: {have}, ...; "
            "give patterns of their names, for instance lora.targets='*.fc1.weight'"
        )
    return found


class LowRank(Compressed):
    """float16 both ways unless a variant says otherwise."""

    lr = 0.01
    both = True
    """Whether A is trained and sent; else it stays what the shared seed makes it."""

    def __init__(self, task: Task) -> None:
        settings = task.config.lora
        self.adapted = projections(task.masked.layers, settings.targets)
        self.rank = settings.rank
        self.scale = settings.alpha / settings.rank
        seed = task.config.seed
        self.first = [_uniform(derive(seed, "lora", i), self.rank, p.columns) for i, p in enumerate(self.adapted)]
        super().__init__(task)

    def code(self) -> Update:
        return Plain(half=True)

    def down(self) -> Update:
        return Plain(half=True)

    def start(self) -> NDArray[np.float32]:
        """A as the seed makes it, B zero; adapter by adapter."""
        parts = []
        for p, a in zip(self.adapted, self.first, strict=True):
            parts += [a.reshape(-1)] if self.both else []
            parts.append(np.zeros(p.rows * self.rank, np.float32))
        return np.concatenate(parts)

    def split(self, numbers: Tensor) -> dict[str, Tensor]:
        """The trained matrices by name: A0, B0, A1, ..."""
        parts = {}
        at = 0
        for i, p in enumerate(self.adapted):
            shapes = {f"A{i}": (self.rank, p.columns)} if self.both else {}
            for name, shape in {**shapes, f"B{i}": (p.rows, self.rank)}.items():
                parts[name] = numbers[at : at + shape[0] * shape[1]].view(shape)
                at += shape[0] * shape[1]
        return parts

    def weights(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """W + scale * B A for every weight with an adapter."""
        masked = self.task.masked
        plain = masked.split(masked.frozen)
        rows: dict[str, list[Tensor]] = {}
        for i, p in enumerate(self.adapted):
            a = parts[f"A{i}"] if self.both else torch.from_numpy(self.first[i]).to(masked.frozen.device)
            done = rows.setdefault(p.name, [])
            gap = p.first - sum(len(t) for t in done)
            if gap:  # rows between two adapters stay what they are
                done.append(plain[p.name][p.first - gap : p.first])
            done.append(plain[p.name][p.first : p.first + p.rows] + self.scale * (parts[f"B{i}"] @ a))
        out = {}
        for name, found in rows.items():
            rest = plain[name][sum(len(t) for t in found) :]
            out[name] = torch.cat([*found, rest]) if len(found) > 1 or len(rest) else found[0]
        return out


def _uniform(key: int, rank: int, columns: int) -> NDArray[np.float32]:
    """Within 1 / sqrt(columns) of zero, the same on every machine."""
    unit = uniforms(key, rank * columns).astype(np.float64) / 2.0**30 - 1
    out: NDArray[np.float32] = (unit / np.sqrt(columns)).astype(np.float32).reshape(rank, columns)
    return out
