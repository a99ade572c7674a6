"""What a comparison runs with which settings, and the pages and figures that it makes of results."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

from deltamask import comparison, figures, report, summary, tables
from deltamask.cli import shared
from deltamask.comparison import plan
from deltamask.errors import ConfigError, DataError, DeltaMaskError
from deltamask.page import Code, Fold, Grid, Heading, Text, as_html, as_markdown
from deltamask.registry import members
from deltamask.summary import Entry
from tests.test_summary import record


def whole(accuracies: list[float], seed: int = 0, **more) -> dict:
    """A record with all that a page shows."""
    found = record(accuracies, **more)
    for line in found["history"]:
        line |= {"uplink_bpp": 0.5, "downlink_bpp": 32.0, "flips": 3, "wrong_positions": 2}
        line |= {"accuracy_thresholded": line["accuracy"]}
    keys = ("model", "dataset")
    return found | {
        "seed": seed,
        "config": dict.fromkeys(keys, "embedded") | {"clients": 2, "partition": "iid", "participation": 1.0},
        "masked_weights": 1000,
        "rounds": len(accuracies) - 1,
        "partition": {"sizes": [3, 1], "effective_classes": 0.5, "class_counts": [[2, 1], [1, 0]]},
        "hardware": {"cores": 2, "cpu": "a cpu"},
        **dict.fromkeys(("commit", "python", "versions")),
    }


class TestPlan:
    def test_all_is_every_method_and_the_paper(self, tmp_path) -> None:
        runs = plan(None, "all", ["seed=3"], 2, tmp_path)
        labels = list(dict.fromkeys(run.label for run in runs))
        assert labels[:2] == ["deltamask", "deltamask:paper"]
        assert sorted(labels) == sorted([*members("deltamask.methods", "METHOD"), "deltamask:paper"])
        assert [run.config.seed for run in runs] == [3] * len(labels) + [4] * len(labels)
        assert len({run.out for run in runs}) == len(runs)
        paper = runs[1]
        assert (paper.config.method, paper.config.channel.codec) == ("deltamask", "bfuse8")
        assert (paper.out, paper.which) == (tmp_path / "deltamask-paper" / "seed-3", f"2 of {len(runs)}")
        assert next(iter(plan(None, "fedpm, all", [], 1, tmp_path))).label == "fedpm"

    def test_what_is_for_one_wins_over_what_is_for_all_and_the_line_over_the_file(self, tmp_path) -> None:
        file = tmp_path / "c.toml"
        file.write_text(
            "rounds = 7\ntrain.lr = 1e-5\n[methods.finetune]\ntrain.lr = 2e-5\ntrain.epochs = 3\n"
            '[methods."deltamask:paper"]\nchannel.kappa = 0.5\n[methods.eden]\nrounds = 99\n'
        )
        labels = "deltamask,deltamask:paper,finetune,linear-probe"

        def configs(*sets: str) -> dict:
            return {run.label: run.config for run in plan(file, labels, sets, 1, tmp_path)}

        found = configs()
        assert {c.rounds for c in found.values()} == {7}
        assert [c.train.lr for c in found.values()] == [1e-5, 1e-5, 2e-5, 1e-5]
        assert [c.train.epochs for c in found.values()] == [1, 1, 3, 1]
        assert [c.channel.kappa for c in found.values()] == [1, 0.5, 1, 1]
        found = configs("train.lr=3e-5", "linear-probe:train.lr=4e-5", "deltamask:paper:channel.kappa=0.25")
        assert [c.train.lr for c in found.values()] == [3e-5, 3e-5, 3e-5, 4e-5]
        assert [c.channel.kappa for c in found.values()] == [1, 0.25, 1, 1]
        assert found["finetune"].train.epochs == 3

    @pytest.mark.parametrize(
        ("file", "sets", "message"),
        [
            ("", ["fintune:train.lr=1"], "did you mean 'finetune'"),
            ("", ["fedpm:train.lr=1"], "not found"),  # a method, but not one of these
            ("", ["finetune:train.lrr=1"], "did you mean 'train.lr'"),
            ("", ["finetune:train.lr"], "expected key=value"),
            ("", ["finetune:seed=1"], "cannot have its own seed"),
            ("", ["seed=-1"], "seed is -1"),
            ("[methods.fintune]\ntrain.lr = 1", [], "did you mean 'finetune'"),
            ("[methods.finetune]\nmethod = 'fedpm'", [], "cannot have its own method"),
            ("[methods.finetune]\ntrain.lrr = 1", [], "did you mean 'train.lr'"),
            ("[methods]\nfinetune = 1", [], "expected a table"),
            ("methods = 'all'", [], "unknown setting 'methods'"),
        ],
    )
    def test_refusals(self, file, sets, message, tmp_path) -> None:
        path = tmp_path / "c.toml"
        path.write_text(file)
        with pytest.raises(ConfigError, match=re.escape(message)):
            plan(path, "deltamask,finetune", sets, 1, tmp_path)


class TestRunAll:
    """`run_one` is stood in for, and runs in this process: what becomes of its outcomes."""

    def runs(self, monkeypatch, tmp_path, outcome, seeds=2, methods="fedpm,finetune"):
        monkeypatch.setattr(comparison, "run_one", lambda config, *_args, **_more: outcome(config))
        here = lambda runs, *_args: [comparison._outcome(run, False, True, False) for run in runs]  # noqa: E731
        monkeypatch.setattr(comparison, "_in_processes", here)
        return comparison.run_all(plan(None, methods, [], seeds, tmp_path), False, True, 1)

    def test_a_failure_or_a_bug_leaves_the_others_alone(self, monkeypatch, tmp_path, capsys) -> None:
        def outcome(config):
            if (config.method, config.seed) == ("fedpm", 1):
                raise DataError("numbers that are not finite")
            if (config.method, config.seed) == ("finetune", 0):
                raise KeyError("oops")
            return {"seed": config.seed}

        found = self.runs(monkeypatch, tmp_path, outcome)
        assert found == {
            "fedpm": Entry({0: {"seed": 0}}, {1: "numbers that are not finite"}),
            "finetune": Entry({1: {"seed": 1}}, {0: "KeyError: 'oops'"}),
        }
        assert "Traceback" in capsys.readouterr().err  # of the bug, which is nobody's fault but ours

    def test_nothing_but_failures_is_an_error(self, monkeypatch, tmp_path) -> None:
        def outcome(config):
            raise DataError("no such images")

        with pytest.raises(DeltaMaskError, match=r"^no such images$"):
            self.runs(monkeypatch, tmp_path, outcome)

    def test_an_interruption_is_no_failure(self, monkeypatch, tmp_path) -> None:
        def outcome(config):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.runs(monkeypatch, tmp_path, outcome)

    def test_folders_are_looked_at_before_anything_runs(self, monkeypatch, tmp_path) -> None:
        def outcome(config):
            raise AssertionError("something ran")

        folder = tmp_path / "finetune" / "seed-1"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text('{"config_digest": "0123456789abcdef"}')
        with pytest.raises(ConfigError, match="already holds a run"):
            self.runs(monkeypatch, tmp_path, outcome)
        with pytest.raises(ConfigError, match="other settings"):
            comparison.run_all(plan(None, "fedpm,finetune", [], 2, tmp_path), True, True, 1)


@pytest.fixture
def entries() -> dict[str, Entry]:
    return {
        "lost": Entry({}, {0: "<script>x</script>", 1: "y"}),
        "deltamask:paper": Entry({n: whole([0.2, 0.86 + n / 100], n) for n in range(2)}),
        "finetune": Entry({n: whole([0.2, 0.5, 0.9], n, up=5 * 10**9, down=10**9) for n in range(2)}),
    }


def test_pages_and_files_of_a_comparison(entries, tmp_path) -> None:
    report.write_comparison(tmp_path, entries)
    names = ["comparison.csv", "comparison.svg", "report.html", "report.md", "runs.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    text, page = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    assert text.startswith("# deltamask:paper: 86.5 ± 0.7% with 0.5 bits per parameter up, 20.0 ± 0.0% before\n")
    assert "| lost | failed |" in text
    assert "lost, seed 1, failed: y" in text
    assert "seeds 0, 1 (mean" in text
    assert "`finetune` ends with (90.0%)" in text
    assert page.count("<svg") == 3  # by bytes, by round, who has what
    assert "<script" not in page
    assert "<code>finetune</code> ends with" in page
    assert ElementTree.parse(tmp_path / "comparison.svg").getroot().tag.endswith("svg")


def test_without_fine_tuning_a_note_says_what_is_missing(entries, tmp_path) -> None:
    del entries["finetune"]
    report.write_comparison(tmp_path, entries)
    text = (tmp_path / "report.md").read_text()
    assert "need a result of `finetune`" in text
    assert re.search(r"\| deltamask:paper \|(  \|){6} 30\.0", text)


def test_a_report_without_matplotlib_says_so(entries, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)
    report.write_comparison(tmp_path, entries)
    assert "Figures need matplotlib" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "comparison.svg").exists()


def test_parts_look_alike_in_both_forms() -> None:
    parts = [Heading("A & b"), Text("see `x<y`"), Grid(("k", "n"), [("<", "1")]), Fold("more", Code("{}"))]
    assert as_markdown("T", parts) == (
        "# T\n\n## A & b\n\nsee `x<y`\n\n| k | n |\n| --- | ---: |\n| < | 1 |\n\n```json\n{}\n```\n"
    )
    page = as_html("T", parts)
    assert "<h2>A &amp; b</h2><p>see <code>x&lt;y</code></p>" in page
    assert "<td>&lt;</td><td>1</td>" in page
    assert "<details><summary>more</summary><pre>{}</pre></details>" in page
    HTMLParser().feed(page)


def test_lines_of_twenty_methods_are_told_apart() -> None:
    found = summary.curves({f"m{n}": Entry({0: record([0.2, 0.5 + n / 100])}) for n in range(20)})
    axes = figures.comparison(found, 0.6).axes[0]
    lines = [line for line in axes.lines if line.get_label().startswith("m")]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}
    assert len(looks) == 20
    assert len({look[:2] for look in looks}) == 20  # where no marker is
    assert lines[3].get_xdata().tolist() == [30, 1130]
    assert figures.comparison(found).axes[1].lines[3].get_xdata().tolist() == [10, 110]


def test_a_classifier_that_cost_nothing_is_left_out_of_a_logarithmic_axis() -> None:
    found = summary.curves({"m": Entry({0: record([0.2, 0.5], head=(0, 0))})})
    figure = figures.comparison(found)
    assert figure.axes[0].lines[0].get_xdata().tolist() == [1100]
    assert b"<svg" in figures.render(figure, "svg")


def test_the_widest_tables_fit_120_columns(monkeypatch, capsys) -> None:
    """Real sizes: 35 million weights, 30 clients, 100 rounds, a minute to encode, a machine with much memory."""
    big = 4 * 35_389_440 * 30
    fine = {n: record([0.2, 0.998 - n / 100], up=100 * big, down=100 * big, seconds=99_999.0) for n in range(3)}
    for r in fine.values():
        r["history"][1]["clients"] = list(range(3000))
        r |= {"wrong_positions": 3000 * 276_480, "peak_memory_mib": 12_345.6, "downlink_bpp": 32.0001}
        r |= {"stages": {"encode": 3 * 9876.5, "decode": 3 * 9876.5}}
    rows = summary.rows({"deltamask:paper": Entry(fine), "finetune": Entry(fine)})
    monkeypatch.setattr(shared, "screen", Console(width=120))
    for head, cells in (
        (tables.COMPARISON, tables.comparison_rows(rows)),
        (tables.PRICE, tables.price_rows(rows)),
    ):
        shared.show_table("t", head, cells)
        body = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
        assert [tuple(cell.strip() for cell in line) for line in body] == cells  # each row a line, nothing cut


@pytest.mark.parametrize(
    "change",
    [
        {"history": []},
        {"history": [{}]},
        {"accuracy": "0.9"},
        {"accuracy": float("nan")},
        {"stages": {"encode": None}},
        {"stages": []},
        {"peak_memory_mib": "much"},
        {"config": {}},
        {"partition": None},
        {"hardware": {}},
    ],
)
def test_a_damaged_result_is_refused(change, tmp_path) -> None:
    good = whole([0.2, 0.9])
    path = tmp_path / "result.json"
    path.write_text(json.dumps(good))
    assert report.load_result(tmp_path) == good
    path.write_text(json.dumps(good | change))
    with pytest.raises(DataError, match="is not the result of a run"):
        report.load_result(tmp_path)
    path.write_text("[]")
    with pytest.raises(DataError, match="is not the result of a run"):
        report.load_result(tmp_path)
