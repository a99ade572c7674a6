"""Tables of docs/guide.md: our splits beside those of flwr-datasets."""

from __future__ import annotations

from tablekit import read, table


def partition_name(case: dict) -> str:
    return (
        f"{case['images']:,} images of {case['classes']} classes, {case['clients']} clients, Dir({case['alpha']:g})"
    )


def partitioners_alike() -> str:
    report = read("partitioners")

    def shown(case: dict, key: str, who: str) -> str:
        value = case["statistics"][key][who]
        return f"{value['mean']:.3f} ± {value['sd']:.3f}"

    rows = [
        [
            partition_name(case),
            *(shown(case, k, w) for k in ("effective_classes", "spread_of_sizes") for w in ("ours", "flwr_datasets")),
            f"{min(s['ks']['p'] for s in case['statistics'].values()):.2g}",
            "yes" if case["agree"] else "**no**",
        ]
        for case in report["cases"]
    ]
    head = ["split", "effective classes", "flwr-datasets", "spread of sizes", "flwr-datasets", "p", "agree"]
    limits = report["tolerance"]
    note = (
        f"Mean ± standard deviation over {report['cases'][0]['splits']['ours']} seeds; flwr-datasets "
        f"{report['peer']['flwr-datasets']}. Tolerance {limits['effective_classes']}, level {limits['ks_level']}."
    )
    return table(head, rows) + "\n\n" + note


def partitioners_exact() -> str:
    report = read("partitioners")
    rows = [
        ["`iid`, our order", f"`IidPartitioner`, {report['iid']['splits']} seeds", same(report["iid"]["same"])],
        ["`column:NAME`, a client for each value", "`NaturalIdPartitioner`", same(report["column"]["same"])],
    ]
    for case in report["cases"]:
        given = case["same_shares"]
        moved = f"{given['images_elsewhere']:,} of {given['images']:,} images elsewhere"
        rows.append(
            [
                partition_name(case),
                f"`DirichletPartitioner`, our shares reversed, {given['splits']} seeds",
                moved if given["images_elsewhere"] else "same class counts",
            ]
        )
    return table(["ours", "flwr-datasets", "result"], rows)


def same(value: bool) -> str:
    return "same images for every client" if value else "**not the same**"


def partitioners_end() -> str:
    rows = []
    for case in read("partitioners")["cases"]:
        present = case["classes_present"]
        cells = [f"{present[who][at]:.1f}" for who in ("ours", "flwr_datasets") for at in ("first", "others", "last")]
        rows.append([partition_name(case), *cells])
    return table(["classes that a client has", "first", "others", "last", "flwr: first", "others", "last"], rows)


TABLES = {
    "partitioners": partitioners_alike,
    "partitioners-exact": partitioners_exact,
    "partitioners-end": partitioners_end,
}
