"""The runs behind docs/embedded.md: sweeps on the embedded task, one JSON a run in ``results/embedded/``.

python scripts/study_embedded.py --jobs 2              # all of them; finished ones are kept
python scripts/study_embedded.py --only theta0         # one study
python scripts/tables.py                               # then the tables
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deltamask.config import load

RESULTS = Path(__file__).resolve().parent.parent / "results" / "embedded"

STUDIES: dict[str, dict[str, list[str]]] = {
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
        "deltamask:paper": ["preset=paper"],
        "fedpm": ["method=fedpm"],
        "finetune": ["method=finetune"],
        "linear-probe": ["method=linear-probe"],
        "linear-probe, 60 rounds of 5 epochs": ["method=linear-probe", "rounds=60", "train.epochs=5"],
    },
}


def known(digest: str) -> dict | None:
    """The result of the same settings in another study."""
    for path in sorted(RESULTS.glob("*/*.json")):
        record = json.loads(path.read_text())
        if record["config_digest"] == digest:
            return record
    return None


def one(folder: str, label: str, sets: list[str], seed: int) -> str:
    """Runs one configuration in a process of its own, on one thread, unless its result is there."""
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in label)
    path = RESULTS / folder / f"{name}-seed{seed}.json"
    if path.exists():
        return f"{path.name}: kept"
    settings = [*sets, f"seed={seed}", "train.threads=1"]
    words = [word for item in settings for word in ("--set", item)]
    record = known(load(overrides=settings).digest())
    if record is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record | {"label": label}) + "\n")
        return f"{path.name}: the same settings as elsewhere"
    work = Path("runs") / "study" / folder / f"{name}-seed{seed}"
    command = [sys.executable, "-m", "deltamask", "run", *words, "--out", str(work), "--resume", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        return f"{path.name}: FAILED {done.stderr[-500:]}"
    record = {"label": label, **json.loads((work / "result.json").read_text())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record) + "\n")
    return f"{path.name}: {100 * record['accuracy']:.1f}% {record['uplink_bpp']:.4f} bpp {record['seconds']:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STUDIES, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    todo = [
        (folder, label, sets, seed)
        for folder in args.only or STUDIES
        for seed in range(args.seeds)
        for label, sets in STUDIES[folder].items()
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        for line in pool.map(lambda job: one(*job), todo):
            print(line, flush=True)


if __name__ == "__main__":
    main()
