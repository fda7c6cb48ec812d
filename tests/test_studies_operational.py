"""The headline study: its loops differ as described, costs are counted once, and it resumes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from operant import load_digits, results, spawn
from operant.campaign import Campaign
from operant.conditions import Recipe, normal
from operant.execution.signature import signature_of
from operant_studies import operational
from operant_studies.operational import page, unit
from operant_studies.operational.settings import (
    AUGMENTED,
    CAMPAIGNS,
    FULL,
    LABELLED,
    NO_FEEDBACK,
    PGD_LOOP,
    ROBOT_LOOP,
    settings,
)
from operant_studies.operational.variants import campaign, random_cases, random_seeds, weak_seeds

SETTING = settings("smoke")[0]
RECIPE = Recipe(severities={"rotation": normal(10)})


def test_every_loop_differs_from_the_whole_one_as_described() -> None:
    built = {name: campaign(name, SETTING, RECIPE, 0.1) for name in CAMPAIGNS}
    whole = built[FULL]
    same = ("requirement", "rounds", "cases", "labels", "seeds_per_round", "cases_per_round", "retrainer", "max_drop")
    for name, each in built.items():
        assert isinstance(each, Campaign)
        assert all(getattr(each, field) == getattr(whole, field) for field in same)
        assert (signature_of(each) == signature_of(whole)) == (name == FULL)
    assert signature_of(replace(built[NO_FEEDBACK], feedback=True)) == signature_of(whole)
    for name in (PGD_LOOP, ROBOT_LOOP):  # a fuzzer that ignores the fitted naturalness
        (made,) = [move(naturalness=None) for move in built[name].moves.values()]
        assert made.radius == 0.1
        assert built[name].seed_chooser is random_seeds


def test_replaced_parts_draw_without_repeats(lenet) -> None:
    data = lenet.correct(load_digits(size=28).test)[:200]
    for part in (random_seeds, weak_seeds):
        drawn = part(lenet, data, 50, generator=spawn(0, "seeds"))
        assert len(drawn.ids.unique()) == 50
        assert bool(torch.isin(drawn.ids, data.ids).all())
    rows = random_cases(lenet, data, 50, generator=spawn(0, "choice"))
    assert len(rows.unique()) == 50


def points(pmi: list[float]) -> list[unit.LoopPoint]:
    return [
        unit.LoopPoint(round=i, cases=10 * i, labels=5 + i, seconds=float(i), pmi=p, clean=0.9)
        for i, p in enumerate(pmi)
    ]


def test_needed_amounts_follow_the_running_minimum_of_pmi() -> None:
    assert page.needed(points([0.3, 0.1]), 0.2, "cases") == pytest.approx(5)
    assert page.needed(points([0.3, 0.1, 0.2]), 0.05, "cases") == np.inf
    assert page.needed(points([0.3, 0.35, 0.25]), 0.275, "labels") == pytest.approx(6.5)
    assert page.needed(points([0.1, 0.2]), 0.15, "labels") == 5
    assert page.needed(points([0.4, 0.2, 0.2]), 0.2, "seconds") == pytest.approx(1)


@pytest.mark.slow
def test_the_study_runs_resumes_and_writes_its_page(tmp_path, monkeypatch) -> None:
    few = replace(
        SETTING, field=replace(SETTING.field, seeds=(0,)), variants=(FULL, PGD_LOOP, LABELLED, AUGMENTED), rounds=1
    )
    monkeypatch.setattr(operational, "settings", lambda scale: (few,))
    run = {"data": None, "scale": "smoke", "workers": 1, "console": Console(quiet=True)}
    path = operational.run_study(tmp_path, **run)
    first = path.read_text()
    fields = page.FieldLoops(few, tmp_path)
    for name, loops in fields.loops.items():
        (loop,) = loops
        assert [p.round for p in loop] == [0, 1]
        assert np.all(np.diff([p.seconds for p in loop]) > 0)
        assert loop[1].labels >= loop[0].labels
        assert (loop[1].cases == 0) == (name == AUGMENTED)
        assert f"| {name} |" in first
    assert len({loops[0][0].pmi for loops in fields.loops.values()}) == 1  # all start from the same model
    labelled = fields.loops[LABELLED][0]
    assert labelled[1].labels == 2 * few.labels_per_round + few.cases_per_round
    assert (tmp_path / "operational.svg").stat().st_size > 1000

    monkeypatch.setattr(unit, "make_field", lambda *_: pytest.fail("computed twice"))
    assert operational.run_study(tmp_path, **run).read_text() == first
    with pytest.raises(ValueError, match="another scale"):
        operational.run_study(tmp_path, **{**run, "scale": "small"})
    clocked = results.load(tmp_path / "steps" / "digits-0" / "the-whole-loop-seconds-1.json", unit.CpuTime)
    assert clocked.seconds > 0
