"""A vision transformer of the shape of ViT-B/32 with random weights: the load of a real one, nothing to download."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["VIT_B32", "Shape", "VisionTransformer"]


class Shape(NamedTuple):
    """Width, heads, blocks, patch and image side in pixels."""

    width: int
    heads: int
    blocks: int
    patch: int
    side: int


VIT_B32 = Shape(768, 12, 12, 32, 224)


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.proj(mixed)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Images -> the class token behind the last block."""

    def __init__(self, shape: Shape = VIT_B32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, shape.width, shape.patch, shape.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (shape.side // shape.patch) ** 2 + 1, shape.width))
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x[:, 0])
        return out
