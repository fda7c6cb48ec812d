"""The study of labels runs, resumes, and counts as described."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from operant import spawn
from operant.conditions import apply
from operant_studies.operational_fuzz import labels
from operant_studies.operational_fuzz.reading import READ, SheetReading
from operant_studies.operational_fuzz.settings import settings
from operant_studies.operational_fuzz.sheets import draw_sheet, fingerprint, names_of
from operant_studies.operational_fuzz.validity import AcceptedCases, ReferenceVerdicts

SETTING = settings("smoke")[0]


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for _, work in labels.units((SETTING,), None, folder):
        work()
    torch.set_num_threads(before)
    return folder


@pytest.fixture
def judged_cases(out) -> tuple[AcceptedCases, ReferenceVerdicts]:
    steps = labels.steps_of(SETTING, out)
    return steps.read("cases", AcceptedCases), steps.read("judged", ReferenceVerdicts)


@pytest.mark.slow
def test_cases_are_failures_and_the_reference_judges_each(judged_cases) -> None:
    cases, judged = judged_cases
    assert 10 < len(cases.x) <= 100
    assert len(cases.x) <= cases.accepted
    assert bool((cases.prediction != cases.label).all())
    assert len(judged.wrong) == len(judged.equal) == len(cases.x)
    assert judged.reference_error < 0.5


@pytest.mark.slow
def test_cases_by_conditions_can_be_reproduced(judged_cases) -> None:
    cases, _ = judged_cases
    by = cases.conditions
    assert bool(by.any())
    neutral = cases.recipe.neutral(int(by.sum()))
    drawn = type(neutral)(
        names=neutral.names,
        values=cases.values[by],
        seeds=cases.noise[by],
        bounds=neutral.bounds,
        padding=neutral.padding,
    )
    assert torch.equal(apply(cases.x0[by], drawn), cases.x[by])


@pytest.mark.slow
def test_finished_steps_do_not_run_again(out, monkeypatch) -> None:
    monkeypatch.setattr(labels, "make_field", lambda *_: pytest.fail("the field was made again"))
    for _, work in labels.units((SETTING,), None, out):
        work()


@pytest.mark.slow
def test_the_page_has_shares_and_the_sheet(out, judged_cases, monkeypatch) -> None:
    cases, _ = judged_cases
    text = labels.section((SETTING,), out)
    assert "not read" in text, "nobody has read this sheet"
    assert f"operational-fuzz-labels-{SETTING.name}.jpg" in text
    reading = SheetReading(sheet=fingerprint(cases.x), lost=((1, 2),), unsure=((2, 1), (1, 3)))
    monkeypatch.setitem(READ, SETTING.name, reading)
    text = labels.section((SETTING,), out)
    assert "Label lost: row 1, column 2. Unsure: row 2, column 1; row 1, column 3." in text
    assert f"{100 * (1 - 2 / len(cases.x)):.1f} [" in text
    with Image.open(out / f"operational-fuzz-labels-{SETTING.name}.jpg") as sheet:
        assert sheet.width > 10 * 28


def test_a_page_needs_results(tmp_path) -> None:
    with pytest.raises(ValueError, match="run the study to its end first"):
        labels.section((SETTING,), tmp_path)


def test_places_that_were_read_are_on_a_sheet_of_a_hundred() -> None:
    for reading in READ.values():
        places = [*reading.lost, *reading.unsure]
        assert len(set(places)) == len(places)
        assert all(1 <= row <= 10 and 1 <= column <= 10 for row, column in places)
        assert reading.share(100) == pytest.approx(1 - len(reading.lost) / 100 - len(reading.unsure) / 200)


def test_share_of_labels_that_hold() -> None:
    none = labels.holding(torch.zeros(50, dtype=torch.float64))
    assert (none.value, none.lower, none.upper) == (1.0, 1.0, 1.0)
    below = labels.holding(torch.full((50,), -0.2, dtype=torch.float64))
    assert below.value == 1.0, "a reference that does better on cases means that all labels hold"
    wrong = (torch.rand(400, generator=spawn(0)) < 0.3).double()
    some = labels.holding(wrong - 0.1)
    assert some.value == pytest.approx(1.1 - float(wrong.mean()))
    assert some.lower < some.value < some.upper
    assert some.upper - some.lower == pytest.approx(2 * 1.96 * (0.3 * 0.7 / 400) ** 0.5, rel=0.25)


def test_a_sheet_shows_every_case_at_its_place(tmp_path) -> None:
    x = torch.zeros(12, 1, 8, 8)
    x[11] = 1.0
    draw_sheet(x, torch.zeros(12).long(), torch.ones(12).long(), names_of("mnist"), tmp_path / "s.png", scale=2)
    pixels = np.asarray(Image.open(tmp_path / "s.png").convert("L"))
    assert pixels[18 + 31 + 1 : 18 + 31 + 15, 18 + 20 + 1 : 18 + 20 + 15].min() == 255  # row 2, column 2
    assert pixels[18 + 1 : 18 + 15, 18 + 1 : 18 + 15].max() == 0  # row 1, column 1
    assert fingerprint(x) != fingerprint(x.flip(0))
    assert names_of("cifar10")[3] == "cat"
