"""The study of reliability runs, resumes, and writes its page."""

from io import StringIO

from rich.console import Console

from operant_studies import reliability


def test_the_study_runs_on_the_digits_and_resumes(tmp_path) -> None:
    console = Console(file=StringIO())
    page = reliability.run_study(tmp_path, data=None, scale="smoke", workers=1, console=console)
    text = page.read_text()
    for part in (
        "## Bounds from few labels",
        "| plain | stratified | 60 |",
        "| plain | pps | 60 |",
        "## Cells",
        "hold one class each",
    ):
        assert part in text
    steps = {file: file.stat().st_mtime_ns for file in (tmp_path / "steps").iterdir()}
    again = reliability.run_study(tmp_path, data=None, scale="smoke", workers=1, console=console)
    assert again.read_text() == text
    assert {file: file.stat().st_mtime_ns for file in steps} == steps
