"""The runs behind the tables in README and docs: one JSON a run in ``results/TASK/STUDY/``.

python scripts/study.py embedded --jobs 2              # all studies of a task; finished runs are kept
python scripts/study.py real --only heads              # one study; the real pair is in ../shared/assets, or --assets
python scripts/tables.py                               # then the tables

A run that was cut off goes on from its last whole round (folder runs/study).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import methods

from deltamask.config import load

RESULTS = Path(__file__).resolve().parent.parent / "results"

Studies = dict[str, dict[str, list[str]]]

# What 20 methods with 3 seeds under 4 federations can afford; all views are looked at after the last round.
QUICK = ["train.precision=bfloat16", "evaluation.precision=bfloat16", "evaluation.all_views_every=100"]

# The paper's hard case: few classes a client, a fifth of the clients a round.
FEW = ["partition=dirichlet:0.1", "participation=0.2", "rounds=30"]
PAPERS = {label: sets for label, sets in methods.chosen("embedded").items() if label in ("deltamask:paper", "fedpm")}

EMBEDDED: Studies = {
    "score-lr": {v: [f"train.score_lr={v}"] for v in ("0.05", "0.1", "0.2", "0.4")},
    "theta0": {v: [f"theta0={v}"] for v in ("0.5", "0.8", "0.9", "0.95", "0.99")},
    "finetune-lr": {v: ["method=finetune", f"train.lr={v}"] for v in ("3e-4", "1e-3", "2e-3", "4e-3")},
    "channel": {
        "coupled, control": [],
        "coupled, control, kappa .8": ["channel.kappa=0.8"],
        "coupled, bayes": ["aggregation.rule=bayes"],
        "coupled, bayes, kappa .8": ["aggregation.rule=bayes", "channel.kappa=0.8"],
        "independent, bayes": ["aggregation.rule=bayes", "channel.sampling=independent"],
        "independent, bayes, kappa .8": [
            "aggregation.rule=bayes",
            "channel.sampling=independent",
            "channel.kappa=0.8",
        ],
        "shared, bayes": ["aggregation.rule=bayes", "channel.sampling=shared"],
    },
    "compare": {
        "deltamask": [],
        "deltamask, mrc": ["channel.kind=mrc"],
        "deltamask:paper": ["preset=paper"],
        "fedpm": ["method=fedpm"],
        "finetune": ["method=finetune", "train.lr=4e-3"],
        "linear-probe": ["method=linear-probe"],
        "linear-probe, 60 rounds of 5 epochs": ["method=linear-probe", "rounds=60", "train.epochs=5"],
    },
    # Blocks of one length beside those that follow the divergence, at about the same bytes: few of them, and many.
    "klms": {
        label: [*QUICK, "method=klms", *sets]
        for label, sets in {
            "fixed, 1,024 weights": [],
            "averaged, 32 bits": ["klms.layout=averaged", "channel.block_bits=32"],
            "fixed, 160 weights": ["channel.block=160"],
            "averaged, 5 bits": ["klms.layout=averaged"],
        }.items()
    },
    "tune-methods": {label: [*QUICK, *sets] for label, sets in methods.sweep(real=False).items()},
    "tune-fedmask": {label: [*QUICK, *sets] for label, sets in methods.thresholds().items()},
    # Who has what, and how many of the clients take part: a fifth of them takes twice the rounds.
    **{
        f"methods-{split.partition(':')[0]}-{share}": {
            label: [
                *QUICK,
                *sets,
                f"partition={split}",
                f"participation={share}",
                *(["rounds=30"] if share < 1 else []),
            ]
            for label, sets in methods.chosen("embedded", split).items()
            if share == 1 or label not in methods.VARIANTS
        }
        for split in ("iid", "dirichlet:0.1")
        for share in (1.0, 0.2)
    },
    # What the paper says of its parts, with its own preset (docs/paper-claims.md).
    "claim-bayes": {
        f"{name}, {said}": [*QUICK, *FEW, *sets, f"aggregation.reset_every={every}"]
        for name, sets in {
            **PAPERS,
            "deltamask with the same prior": [
                *methods.chosen("embedded").get("deltamask", []),
                "aggregation.rule=bayes",
            ],
        }.items()
        for said, every in (("every round", 1), ("every fifth round", 5))
    },
    "claim-kappa": {
        f"{by}, kappa {kappa}": [
            *QUICK,
            *PAPERS.get("deltamask:paper", ["preset=paper"]),
            f"channel.selection={by}",
            f"channel.kappa={kappa}",
        ]
        for by, kappas in (("kl", (0.2, 0.4, 0.6, 0.8, 1.0)), ("random", (0.4, 0.8)))
        for kappa in kappas
    },
    "claim-filters": {
        codec: [*QUICK, *PAPERS.get("deltamask:paper", ["preset=paper"]), f"channel.codec={codec}"]
        for codec in ("bfuse8", "bfuse16", "xor8", "xor16")
    },
}


@dataclass(frozen=True)
class Task:
    """What all studies of a task have in common."""

    base: list[str]
    studies: Studies


def real(assets: str) -> Task:
    """The standard real run: DINOv2 ViT-S/14 on CIFAR-10, 10 clients of 200 images, 56 pixels, 20 rounds."""
    masks = ["theta0=0.95", "train.score_lr=0.1"]
    tuned = ["method=finetune", "train.lr=1e-4"]
    short = ["rounds=10"]
    shorter = ["rounds=6"]
    base = [
        f"model={assets}/vit-small-dinov2",
        f"dataset={assets}/cifar10-15k",
        "image_size=56",
        "clients=10",
        "data.train_images=2000",
        "rounds=20",
        "train.batch=16",
        "train.precision=bfloat16",
        "evaluation.precision=bfloat16",
        "evaluation.all_views_every=20",
    ]
    kinds = {"probe": "probe", "fit": "fit", "kaiming": "kaiming"}
    return Task(
        base,
        {
            "tune-masks": {
                f"theta0 {theta0}, lr {lr}": [*short, f"theta0={theta0}", f"train.score_lr={lr}"]
                for theta0, lr in ((0.8, 0.1), (0.9, 0.1), (0.95, 0.1), (0.99, 0.1), (0.9, 0.2), (0.95, 0.2))
            },
            "tune-finetune": {
                f"lr {lr}": [*short, "method=finetune", f"train.lr={lr}"]
                for lr in ("3e-5", "6e-5", "1e-4", "2e-4", "3e-4")
            },
            "tune-precision": {
                precision: [*short, *masks, f"train.precision={precision}", f"evaluation.precision={precision}"]
                for precision in ("float32", "bfloat16")
            },
            "standard": {"deltamask": masks, "finetune": tuned},
            "tune-methods": {
                label: [*shorter, "theta0=0.95", *sets] for label, sets in methods.sweep(real=True).items()
            },
            "methods": {label: ["theta0=0.95", *sets] for label, sets in methods.chosen("real").items()},
            "methods-dirichlet-0.2": {
                label: ["theta0=0.95", *sets, "partition=dirichlet:0.1", "participation=0.2"]
                for label, sets in methods.chosen("real", "dirichlet:0.1").items()
            },
            "heads": {
                f"{name}, {split}": [*short, *masks, f"head.kind={kind}", f"partition={split}"]
                for split in ("iid", "dirichlet:0.1")
                for name, kind in kinds.items()
            },
        },
    )


def known(task: str, digest: str) -> dict | None:
    """The result of the same settings in another study; settings that are newer than it had their defaults then."""
    for path in sorted((RESULTS / task).glob("*/*.json")):
        record = json.loads(path.read_text())
        if load(values=record["config"]).digest() == digest:
            return record
    return None


def one(task: str, base: list[str], folder: str, label: str, sets: list[str], seed: int, threads: int) -> str:
    """Runs one configuration in a process of its own, unless its result is there."""
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in label)
    path = RESULTS / task / folder / f"{name}-seed{seed}.json"
    if path.exists():
        return f"{folder}/{path.name}: kept"
    settings = [*base, *sets, f"seed={seed}", f"train.threads={threads}"]
    words = [word for item in settings for word in ("--set", item)]
    record = known(task, load(overrides=settings).digest())
    if record is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record | {"label": label}) + "\n")
        return f"{folder}/{path.name}: the same settings as elsewhere"
    work = Path("runs") / "study" / task / folder / f"{name}-seed{seed}"
    command = [sys.executable, "-m", "deltamask", "run", *words, "--out", str(work), "--resume", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        return f"{folder}/{path.name}: FAILED {done.stderr[-500:]}"
    record = {"label": label, **json.loads((work / "result.json").read_text())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record) + "\n")
    said = f"{100 * record['accuracy']:.1f}% {record['uplink_bpp']:.4f} bpp {record['seconds']:.0f} s"
    return f"{folder}/{path.name}: {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("embedded", "real"))
    parser.add_argument("--only", action="append", help="a study; may be repeated (default: all)")
    parser.add_argument("--label", action="append", help="a run of the studies; may be repeated (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    parser.add_argument("--assets", default="../shared/assets", help="where the real pair lies")
    args = parser.parse_args()
    task = real(args.assets) if args.task == "real" else Task([], EMBEDDED)
    unknown = set(args.only or ()) - set(task.studies)
    if unknown:
        parser.error(f"no study {', '.join(sorted(unknown))}; there are {', '.join(task.studies)}")
    todo = [
        (folder, label, sets, seed)
        for folder in args.only or task.studies
        for seed in range(1 if folder.startswith("tune-") else args.seeds)
        for label, sets in task.studies[folder].items()
        if not args.label or label in args.label
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        for line in pool.map(lambda job: one(args.task, task.base, *job, args.threads), todo):
            print(line, flush=True)


if __name__ == "__main__":
    main()
