"""The embedded backbone: a small vision transformer whose weights ship inside the package.

It was pre-trained on Fashion-MNIST by ``scripts/pretrain_embedded.py`` (the provenance stands in
``embedded.json`` beside the weights), so that a first federated run needs neither a hub nor a download.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from deltamask.backbones.base import Preprocess
from deltamask.errors import ConfigError

__all__ = ["EMBEDDED_WEIGHTS", "Block", "TinyViT", "build"]

EMBEDDED_WEIGHTS = Path(__file__).with_name("embedded.safetensors")


class Block(nn.Module):
    """A pre-norm transformer block with fused query/key/value projection."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) -> the same shape."""
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
        x = x + self.proj(mixed)
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return out


class TinyViT(nn.Module):
    """A vision transformer for 28 x 28 grayscale images; the output is the mean of the last tokens."""

    image_size = 28
    preprocess = Preprocess(28, (0.0,), (1.0,), "bilinear")

    def __init__(self, dim: int = 128, depth: int = 8, heads: int = 4, patch: int = 7) -> None:
        super().__init__()
        self.feature_size = dim
        self.stem = nn.Conv2d(1, dim, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (self.image_size // patch) ** 2, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 28, 28) -> (batch, feature_size)."""
        x = self.stem(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x).mean(dim=1)
        return out


def build(weights: str | Path | None = None, image_size: int = 0) -> TinyViT:
    """A small vision transformer, pre-trained on Fashion-MNIST, inside the package; the default."""
    if image_size not in (0, TinyViT.image_size):
        raise ConfigError(f"image_size is {image_size}; the embedded backbone takes {TinyViT.image_size} alone")
    model = TinyViT()
    state = load_file(weights or EMBEDDED_WEIGHTS)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return model.eval()
