"""The campaign tutorial: its code and edits, followed exactly, lead to a report."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from operant.cli import app
from operant.formatting import percent
from operant.report import load_evidence

PAGE = Path(__file__).parents[1] / "docs" / "tutorial" / "campaign.md"


def block(kind: str, number: int = 0) -> str:
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))[number]


@pytest.fixture
def edited(tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder after the first three sections."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(block("python"), PAGE, "exec"), {})
    done = CliRunner().invoke(app, ["init"])
    assert done.exit_code == 0
    assert done.stdout.strip() == block("text").strip()
    text = Path("operant.toml").read_text()
    text = text.replace("# [conditions]", "[conditions]")
    for key, value in re.findall(r"(?m)^(\w+) = (.+?)(?:\s+#.*)?$", block("toml")):
        text, n = re.subn(rf"(?m)^#? ?{key} = .*$", f"{key} = {value}", text, count=1)
        assert n == 1, key
    Path("operant.toml").write_text(text)
    yield tmp_path
    sys.modules.pop("net", None)  # other tests have a net.py too


def test_the_tutorial_ends_with_a_report_and_the_requirement_met(edited) -> None:
    ended = CliRunner().invoke(app, ["run", "operant.toml"])
    assert ended.exit_code == 0, ended.output
    assert "\nmet: The requirement was met after round " in ended.output
    shown = block("text", 1)
    for line in (line for line in shown.splitlines() if line.startswith(("round", "model", "suite", "report"))):
        assert line.partition(":")[0] in ended.output  # the same table, and the same places
    evidence = load_evidence("operant-run/report.json")
    assert f"required {percent(evidence.requirement)}" in shown
    assert evidence.stop is not None
    assert evidence.met
    assert 2 <= len(evidence.rounds) <= 4  # the initial model is not good enough
    assert evidence.gallery.total > 0
    assert (edited / "operant-run" / "report.html").stat().st_size > 50_000
    again = CliRunner().invoke(app, ["run", "operant.toml"])
    assert again.exit_code == ended.exit_code


def test_a_table_pasted_at_the_end_is_rejected_with_advice(edited) -> None:
    """The page says to change keys in place."""
    with open("operant.toml", "a", encoding="utf-8") as file:
        file.write(block("toml"))
    ended = CliRunner().invoke(app, ["run", "operant.toml"])
    assert ended.exit_code == 2
    assert "Cannot declare ('requirement',) twice" in ended.output
    assert "a table may appear only once: change the keys of the first one in place" in ended.output
