"""The page that maps the papers to the code: every name and every study on it exists."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest
from typer.testing import CliRunner

from operant.cli import app
from operant.cli.study import installed_studies

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
LINKS = sorted(set(re.findall(r"\[`([\w.]+)`\]\[([\w.]+)\]", TEXT)))
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| where ")]


@pytest.mark.parametrize(("name", "target"), LINKS)
def test_a_name_exists(name, target):
    found = resolve_name(target)
    assert target.endswith(f".{name}")
    assert callable(found) or isinstance(found, property)


def test_every_row_names_code_or_says_that_there_is_none():
    assert len(ROWS) > 80
    for row in ROWS:
        where, what, here = (cell.strip() for cell in row.strip("|").split("|"))
        assert where
        assert what
        assert re.search(r"\[.+\]|not yet|`operant study|\u2013|as in paper", here), row


def test_studies_exist():
    assert set(re.findall(r"`operant study ([\w-]+)`", TEXT)) <= set(installed_studies())
    assert CliRunner().invoke(app, ["study", "--help"]).exit_code == 0


def test_linked_headings_of_studies_exist():
    for page, anchor in re.findall(r"\]\((\.\./studies/\w+\.md)#([\w-]+)\)", TEXT):
        headings = re.findall(r"(?m)^#+ (.+)$", (PAGE.parent / page).read_text(encoding="utf-8"))
        slugs = [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings]
        assert anchor in slugs
