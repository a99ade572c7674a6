"""A full-size model through the real command, on random weights and a few random images: memory, time and bytes.

python scripts/dry_run.py                     # CLIP ViT-B/32 on images like CIFAR-100's; results/dry_run.json
python scripts/tables.py                      # then the table in docs/real.md

Accuracies of random weights mean nothing and are not kept.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent.parent / "results" / "dry_run.json"
CLASSES, TRAIN, TEST, CLIENTS, ROUNDS = 100, 320, 200, 5, 2
RUNS = {
    "exact": [],
    "exact, bfloat16": ["train.precision=bfloat16", "evaluation.precision=bfloat16"],
    "mrc, bfloat16": ["channel.kind=mrc", "train.precision=bfloat16", "evaluation.precision=bfloat16"],
    "paper": ["preset=paper"],
    "finetune": ["method=finetune", "train.lr=1e-4"],
}


def model(folder: Path) -> None:
    """CLIP ViT-B/32's vision tower as the hub has it, with random weights."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(0)
    CLIPVisionModel(CLIPVisionConfig(patch_size=32)).save_pretrained(folder)


def images(folder: Path) -> None:
    """Random images in the schema of the hub's CIFAR-100."""
    from datasets import ClassLabel, Dataset, Features, Image
    from PIL import Image as Pictures

    rng = np.random.default_rng(0)

    def png() -> dict[str, bytes]:
        file = io.BytesIO()
        Pictures.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(file, "png")
        return {"bytes": file.getvalue()}

    names = [f"class {c}" for c in range(CLASSES)]
    for split, count in (("train", TRAIN), ("test", TEST)):
        rows = {"img": [png() for _ in range(count)], "fine_label": [n % CLASSES for n in range(count)]}
        made = Dataset.from_dict(rows, Features({"img": Image(), "fine_label": ClassLabel(names=names)}))
        made.to_parquet(folder / f"{split}-00000-of-00001.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        model(folder / "model")
        images(folder / "images")
        for label, sets in RUNS.items():
            settings = [
                f"clients={CLIENTS}",
                f"rounds={ROUNDS}",
                "train.batch=64",
                f"train.threads={args.threads}",
                "head.epochs=5",
                "evaluation.all_views_every=2",
                f"data.cache_dir={folder / 'cache'}",
                *sets,
            ]
            words = ["run", "--model", str(folder / "model"), "--dataset", str(folder / "images"), "--json"]
            words += ["--out", str(folder / f"out-{len(found)}")]
            words += [word for item in settings for word in ("--set", item)]
            env = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(
                [sys.executable, "-m", "deltamask", *words], env=env, stdout=subprocess.PIPE, text=True, check=True
            )
            record = json.loads(done.stdout)
            last = record["history"][-1]
            kept = ("seed", "method", "masked_weights", "peak_memory_mib", "seconds", "head_uplink_bytes")
            found[label] = {
                **{key: record[key] for key in kept},
                **{key: last[key] for key in ("uplink_bytes", "uplink_bpp", "downlink_bpp", "stages")},
            }
            print(label, found[label], flush=True)
    about = {
        "model": "CLIP ViT-B/32, random weights",
        "images": TRAIN,
        "test_images": TEST,
        "clients": CLIENTS,
        "batch": 64,
        "threads": args.threads,
        "rounds": ROUNDS,
        "runs": found,
        **{key: record[key] for key in ("python", "versions", "commit", "hardware")},
    }
    OUT.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
