"""Tables of docs/performance.md: our codes beside public packages."""

from __future__ import annotations

from tablekit import read, table

ESTIMATES = ("squared error, normal", "squared error, heavy tails")


def packages() -> str:
    """A line for each package and kind of comparison."""
    report = read("crosscheck")
    groups: dict[tuple[str, str, str], list[dict]] = {}
    for check in report["checks"]:
        package = check["peer"].split()[0]
        groups.setdefault((package, check["what"].split(", ")[0].split(":")[0], check["tolerance"]), []).append(check)
    rows = []
    for (package, what, tolerance), checks in groups.items():
        met = sum(c["met"] for c in checks)
        rows.append(
            [
                f"{package} {report['provenance'][package]}",
                what,
                ", ".join(dict.fromkeys(f"`{c['code']}`" for c in checks)),
                measured(checks),
                tolerance,
                f"{met} of {len(checks)}" if met == len(checks) else f"**{met} of {len(checks)}**",
            ]
        )
    return table(
        ["package", "what", "our codes", "ours over theirs, or largest difference", "tolerance", "met"], rows
    )


def measured(checks: list[dict]) -> str:
    if not any(c["theirs"] for c in checks):
        return f"{max(c['ours'] for c in checks):.1g}"
    found = [c["ours"] / c["theirs"] for c in checks]
    return f"{min(found):.3f} to {max(found):.3f} x" if len(found) > 1 else f"{found[0]:.3f} x"


def eden() -> str:
    """Errors of EDEN and DRIVE, ours, srrcomp's and the theory's."""
    checks = read("crosscheck")["checks"]
    rows = []
    for code in dict.fromkeys(c["code"] for c in checks if c["what"] in ESTIMATES):
        by_vector = {c["what"]: c for c in checks if c["code"] == code}
        found = [by_vector[what] for what in ESTIMATES]
        cells = [f"{c[who]:.4f}" for c in found for who in ("ours", "theirs")]
        rows.append([code, *cells, f"{found[0]['theory']:.4f}"])
    return table(["squared error over the vector's", "normal", "srrcomp", "heavy tails", "srrcomp", "theory"], rows)


TABLES = {"crosscheck": packages, "crosscheck-eden": eden}
