"""Our codes beside public packages that do the same: the same numbers, errors and bits, within stated tolerances.

    python benchmarks/crosscheck.py [--only srrcomp] [--out results/crosscheck]

writes OUT.json. Exit code 1 where a tolerance is missed, or a package is not there: what did not run has not passed.
Nothing is timed, so the machine need not be quiet.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from checks import Check
from cross_lora import adapters
from cross_sets import blooms, coders, filters
from cross_updates import updates
from provenance import provenance, single_thread, write_json
from reporting import show_table, wide_console

SEED = 0
FAMILIES = {
    "srrcomp": updates,
    "pyfusefilter": filters,
    "rbloom": blooms,
    "constriction": coders,
    "peft": adapters,
}


def main() -> int:
    """Compares, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(FAMILIES), help="one package; writes nothing")
    parser.add_argument("--out", type=Path, default=Path("results/crosscheck"), help="default: %(default)s")
    options = parser.parse_args()
    single_thread()
    checks: list[Check] = []
    absent = []
    for package, family in FAMILIES.items():
        if options.only in (None, package):
            print(package, flush=True)
            try:
                checks += family()
            except ImportError as error:
                absent.append(package)
                print(f"left out: {error}")
    rows = [
        [
            c.peer,
            c.code,
            c.what,
            f"{c.ours:.5g}",
            f"{c.theirs:.5g}",
            _shown(c.theory),
            c.tolerance,
            "yes" if c.met else "NO",
        ]
        for c in checks
    ]
    show_table(
        wide_console(),
        "Cross-checks",
        ["package", "code", "what", "ours", "theirs", "theory", "tolerance", "met"],
        rows,
    )
    missed = [c for c in checks if not c.met]
    print(f"{len(checks)} comparisons, {len(missed)} beyond their tolerance; packages that are not there: {absent}")
    if options.only is None:
        facts = provenance(SEED, ("torch", *FAMILIES))
        write_json(options.out.with_suffix(".json"), {"provenance": facts, "checks": [asdict(c) for c in checks]})
    return 1 if missed or absent else 0


def _shown(theory: float | None) -> str:
    return "" if theory is None else f"{theory:.5g}"


if __name__ == "__main__":
    sys.exit(main())
