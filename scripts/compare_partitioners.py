"""Our splits beside those of flwr-datasets: the same where they can be, the same distribution where not.

python -m venv /tmp/flwrds-venv && /tmp/flwrds-venv/bin/pip install flwr-datasets
python scripts/compare_partitioners.py --peer /tmp/flwrds-venv/bin/python     # writes results/partitioners.json
python scripts/tables.py                                                      # then the table in docs/guide.md

flwr-datasets stays in a Python of its own: this file calls itself there (``--answer FOLDER``), with arrays in files
between the two.

Agreement means, for each case: the mean effective classes of the two differ by at most `CLOSE`, and a two-sample
Kolmogorov-Smirnov test over the seeds finds, at the level `LEVEL`, no difference in a split's mean effective
classes, in the spread of its clients' sizes, or in its largest client.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent.parent / "results" / "partitioners.json"
SEEDS = 200
EXACT_SEEDS = 20
CLOSE = 0.01  # of effective classes, which go from 0 to 1
LEVEL = 0.001


@dataclass(frozen=True)
class Case:
    data: str
    clients: int
    alpha: float


CASES = (
    Case("digits", 10, 10.0),
    Case("digits", 10, 0.1),
    Case("digits", 30, 0.1),
    Case("100 classes of 500", 30, 0.1),
    Case("100 classes of 500", 100, 1.0),
)


def counted(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """The table of clients x classes."""
    return np.stack([np.bincount(labels[p], minlength=int(labels.max()) + 1) for p in parts])


# What flwr-datasets does, in its own Python.


class GivenShares:
    """In place of the generator of a `DirichletPartitioner`: hands out shares that somebody else drew."""

    def __init__(self, shares: np.ndarray) -> None:
        self.shares = iter(shares)

    def dirichlet(self, _: np.ndarray) -> np.ndarray:
        return next(self.shares)


def answer(folder: Path) -> None:
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, NaturalIdPartitioner

    datasets.disable_progress_bars()
    warnings.simplefilter("ignore")  # it warns of every attempt that left a client too small

    def table(**columns: np.ndarray) -> datasets.Dataset:
        size = len(next(iter(columns.values())))
        return datasets.Dataset.from_dict({**columns, "position": np.arange(size)}).with_format("numpy")

    def parts(partitioner, of: datasets.Dataset) -> list[np.ndarray]:
        partitioner.dataset = of
        return [
            np.asarray(partitioner.load_partition(k)["position"][:], np.int64)
            for k in range(partitioner.num_partitions)
        ]

    def dirichlet(case: Case, least: int, seed: int) -> DirichletPartitioner:
        return DirichletPartitioner(
            case.clients, "label", case.alpha, min_partition_size=least, shuffle=False, seed=seed
        )

    asked = np.load(folder / "asked.npz")
    found: dict[str, np.ndarray] = {}
    for i, case in enumerate(CASES):
        labels = asked[f"labels {case.data}"]
        images = table(label=labels)
        tables, gave_up = [], 0
        for seed in range(SEEDS):
            try:
                tables.append(counted(labels, parts(dirichlet(case, 1, seed), images)))
            except ValueError:  # after ten attempts
                gave_up += 1
        found[f"drawn {i}"], found[f"gave up {i}"] = np.stack(tables), np.array(gave_up)
        given = []
        for shares in asked[f"shares {i}"]:
            partitioner = dirichlet(case, 0, 0)
            partitioner._rng = GivenShares(shares)
            given.append(counted(labels, parts(partitioner, images)))
        found[f"given {i}"] = np.stack(given)
    for seed, order in enumerate(asked["iid orders"]):
        for k, own in enumerate(parts(IidPartitioner(10), table(label=order))):
            found[f"iid {seed} {k}"] = np.sort(order[own])
    for k, own in enumerate(parts(NaturalIdPartitioner("user"), table(user=asked["users"]))):
        found[f"column {k}"] = own
    np.savez(folder / "found.npz", **found)
    packages = {name: version(name) for name in ("flwr-datasets", "datasets", "numpy")}
    packages["python"] = sys.version.split()[0]
    (folder / "versions.json").write_text(json.dumps(packages))


# What we do, and the comparison.


def shares_of(labels: np.ndarray, case: Case, seed: int) -> np.ndarray:
    """The shares that `split` draws in its first attempt: a row for each class, a column for each client."""
    from deltamask.sampling import derive

    rng = np.random.Generator(np.random.Philox(derive(seed, "dirichlet", 0)))
    rows = []
    for size in np.bincount(labels):
        rows.append(rng.dirichlet(np.full(case.clients, case.alpha)))
        rng.permutation(size)  # the order of the images comes from the same generator
    return np.stack(rows)


def ask(folder: Path, peer: str, labels: dict[str, np.ndarray], users: np.ndarray) -> tuple[dict, dict]:
    from deltamask.sampling import derive, permutation

    asked = {f"labels {name}": values for name, values in labels.items()} | {"users": users}
    asked["iid orders"] = np.stack(
        [permutation(derive(seed, "iid"), labels["digits"].size) for seed in range(EXACT_SEEDS)]
    )
    for i, case in enumerate(CASES):
        # Reversed: where a share ends between two images, we round up and flwr-datasets rounds down.
        shares = [shares_of(labels[case.data], case, seed)[:, ::-1] for seed in range(EXACT_SEEDS)]
        asked[f"shares {i}"] = np.stack(shares)
    np.savez(folder / "asked.npz", **asked)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | offline
    subprocess.run([peer, __file__, "--answer", str(folder)], check=True, env=environment)
    return dict(np.load(folder / "found.npz")), json.loads((folder / "versions.json").read_text())


def statistics_of(tables: np.ndarray) -> dict[str, np.ndarray]:
    """What is compared: one number for each split."""
    from deltamask.datasets.partition import Holdings

    sizes = tables.sum(2)
    return {
        "effective_classes": np.array([Holdings(t).effective_classes for t in tables]),
        "spread_of_sizes": sizes.std(1) / sizes.mean(1),
        "largest_client": sizes.max(1),
    }


def compare(case: Case, labels: np.ndarray, drawn: np.ndarray, given: np.ndarray, gave_up: int) -> dict:
    from scipy.stats import ks_2samp

    from deltamask.datasets.partition import split

    how = f"dirichlet:{case.alpha:g}"
    own = np.stack([counted(labels, split(labels, case.clients, how, seed)) for seed in range(SEEDS)])
    exact = np.stack(
        [counted(labels, split(labels, case.clients, how, seed, least=0)) for seed in range(EXACT_SEEDS)]
    )
    rows = {}
    for name, ours in statistics_of(own).items():
        theirs = statistics_of(drawn)[name]
        test = ks_2samp(ours, theirs)
        rows[name] = {
            "ours": {"mean": float(ours.mean()), "sd": float(ours.std(ddof=1))},
            "flwr_datasets": {"mean": float(theirs.mean()), "sd": float(theirs.std(ddof=1))},
            "ks": {"statistic": float(test.statistic), "p": float(test.pvalue)},
        }
    apart = abs(rows["effective_classes"]["ours"]["mean"] - rows["effective_classes"]["flwr_datasets"]["mean"])
    present = {"ours": (own > 0).sum(2), "flwr_datasets": (drawn > 0).sum(2)}
    moved = int(np.abs(exact[:, ::-1] - given).sum()) // 2
    return {
        "data": case.data,
        "images": int(labels.size),
        "classes": int(labels.max()) + 1,
        "clients": case.clients,
        "alpha": case.alpha,
        "splits": {"ours": len(own), "flwr_datasets": len(drawn), "flwr_datasets_gave_up": gave_up},
        "statistics": rows,
        "agree": bool(apart <= CLOSE and all(r["ks"]["p"] > LEVEL for r in rows.values())),
        "classes_present": {
            who: {
                "first": float(t[:, 0].mean()),
                "last": float(t[:, -1].mean()),
                "others": float(t[:, 1:-1].mean()),
            }
            for who, t in present.items()
        },
        "same_shares": {"splits": EXACT_SEEDS, "images": EXACT_SEEDS * int(labels.size), "images_elsewhere": moved},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python that has flwr-datasets")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.answer:
        answer(options.answer)
        return 0
    if not options.peer:
        parser.error("--peer is missing: the path of a Python that has flwr-datasets")

    from deltamask.config import DataSettings
    from deltamask.datasets.digits import DATASET
    from deltamask.datasets.partition import split
    from deltamask.provenance import provenance
    from deltamask.sampling import derive, uniforms

    labels = {"digits": DATASET.load(DataSettings())[0].labels, "100 classes of 500": np.repeat(np.arange(100), 500)}
    users = np.array([f"user {word % 23}" for word in uniforms(derive(0, "users"), labels["digits"].size)])
    with tempfile.TemporaryDirectory() as folder:
        found, versions = ask(Path(folder), options.peer, labels, users)

    iid = [split(labels["digits"], 10, "iid", seed) for seed in range(EXACT_SEEDS)]
    same_iid = all(
        np.array_equal(own, found[f"iid {seed} {k}"]) for seed, p in enumerate(iid) for k, own in enumerate(p)
    )
    natural = split(labels["digits"], np.unique(users).size, "column:user", 0, columns={"user": users})
    report = {
        "tolerance": {"effective_classes": CLOSE, "ks_level": LEVEL},
        "seeds": [0, SEEDS - 1],
        "cases": [
            compare(case, labels[case.data], found[f"drawn {i}"], found[f"given {i}"], int(found[f"gave up {i}"]))
            for i, case in enumerate(CASES)
        ],
        "iid": {"splits": EXACT_SEEDS, "same": same_iid},
        "column": {
            "clients": len(natural),
            "same": all(np.array_equal(own, found[f"column {k}"]) for k, own in enumerate(natural)),
        },
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "peer": versions,
        **provenance(),
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    for case in report["cases"]:
        print(json.dumps(case))
    print({key: report[key] for key in ("iid", "column")})
    return 0 if all(case["agree"] for case in report["cases"]) and same_iid and report["column"]["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
