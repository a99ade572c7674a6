"""Every Python snippet in README and docs runs, every link leads somewhere, every table matches its results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{n}")
    for page in PAGES
    for n, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code) -> None:
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_round_trip_is_short() -> None:
    """README promises a dozen lines."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 14


def test_tables_match_the_results() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "tables.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
