"""Pre-train the embedded backbone on Fashion-MNIST and write its fp16 weights into the package.

    apt-get install dataset-fashion-mnist        # Debian's copy of the data, 60,000 + 10,000 images
    python scripts/pretrain_embedded.py          # about 40 minutes on one core

Plain supervised training with affine augmentation. The weights and a JSON with the settings, versions and
the accuracy reached go beside ``deltamask/backbones/embedded.py``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import platform
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from deltamask.backbones.embedded import EMBEDDED_WEIGHTS, TinyViT

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def read_idx(root: Path, stem: str) -> np.ndarray:
    found = sorted(root.glob(f"{stem}*"))
    if not found:
        raise SystemExit(f"no {stem}* in {root}: apt-get install dataset-fashion-mnist, or pass --data DIR")
    raw = found[0].read_bytes()
    raw = gzip.decompress(raw) if found[0].suffix == ".gz" else raw
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy()


def augment(images: Tensor, rng: torch.Generator) -> Tensor:
    """A random rotation, scale, shift and mirror image for each picture of the batch."""
    n = len(images)
    u = torch.rand(n, 5, generator=rng) * 2 - 1
    angle, scale = u[:, 0] * math.radians(20), 1 + 0.2 * u[:, 1]
    mirror = torch.sign(u[:, 4])
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    rows = torch.stack([cos * mirror, -sin, 0.15 * u[:, 2], sin * mirror, cos, 0.15 * u[:, 3]], dim=1)
    grid = F.affine_grid(rows.view(n, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DEBIAN)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=EMBEDDED_WEIGHTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = torch.Generator().manual_seed(args.seed)

    def part(name: str) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(read_idx(args.data, f"{name}-images"))[:, None].float() / 255
        return images, torch.from_numpy(read_idx(args.data, f"{name}-labels")).long()

    (x, y), (x_test, y_test) = part("train"), part("t10k")
    model, head = TinyViT(), nn.Linear(128, 10)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, weight_decay=0.05)
    steps = args.epochs * (len(x) // args.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps, pct_start=0.1)
    started = time.time()
    accuracy = 0.0
    for epoch in range(args.epochs):
        model.train()
        order = torch.randperm(len(x), generator=rng)
        for i in range(len(x) // args.batch):
            pick = order[i * args.batch : (i + 1) * args.batch]
            out = head(model(augment(x[pick], rng)))
            loss = F.cross_entropy(out, y[pick], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            hits = [
                (head(model(a)).argmax(1) == b).sum()
                for a, b in zip(x_test.split(500), y_test.split(500), strict=True)
            ]
        accuracy = float(sum(hits)) / len(x_test)
        print(
            f"epoch {epoch + 1}/{args.epochs}  test accuracy {accuracy:.4f}  {time.time() - started:.0f} s",
            flush=True,
        )
        save_file({name: t.half().contiguous() for name, t in model.state_dict().items()}, args.out)
        provenance = {
            "data": "Fashion-MNIST, 60,000 training images (Debian package dataset-fashion-mnist)",
            "test_accuracy": accuracy,
            "epochs": epoch + 1,
            "settings": {k: v for k, v in vars(args).items() if k not in ("data", "out")},
            "seconds": round(time.time() - started),
            "torch": torch.__version__,
            "machine": platform.processor() or platform.machine(),
        }
        args.out.with_suffix(".json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    main()
