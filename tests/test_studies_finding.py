"""Finding, a part of the study of operational fuzzing: runs on digits, resumes, and judges all searches alike."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from operant import results, spawn
from operant.generate import FGSM
from operant_studies.operational_fuzz import finding
from operant_studies.operational_fuzz.fields import make_field
from operant_studies.operational_fuzz.finding import (
    RandomConditions,
    SearchArm,
    SearchResult,
    arm_names,
    run_search,
    search_seeds,
)
from operant_studies.operational_fuzz.finding_judge import Judge
from operant_studies.operational_fuzz.finding_tables import PICTURE, section
from operant_studies.operational_fuzz.instruments import FieldInstruments
from operant_studies.operational_fuzz.settings import settings

SETTING = replace(settings("smoke")[0], seeds=(0,), train=300, hunted=20, genetic=1, radii=(0.1,))


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finding")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            finding, "hda", lambda radius: replace(HDA(radius=radius), population=20, generations=3, elites=5)
        )
        for _, work in finding.units((SETTING,), None, out):
            work()
    return out


HDA = finding.hda


@pytest.mark.slow
def test_the_page_has_every_search_and_every_goal(out: Path) -> None:
    page = section((SETTING,), out)
    for name in arm_names(SETTING):
        assert f"| {name} |" in page or f"**{name}**" in page
    verdicts = [line.split("|")[-2].strip(" *") for line in page.splitlines() if line.endswith("** |")]
    assert len(verdicts) == 3 + 3
    assert set(verdicts) <= {"held", "not held", "not decided", "adds", "costs more than it adds"}
    assert "nan" not in page.lower()
    assert "<svg" in (out / PICTURE).read_text()


@pytest.mark.slow
def test_finished_steps_do_not_run_again(out: Path) -> None:
    folder = out / "steps" / f"finding-{SETTING.name}-0"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    finding.run(SETTING, None, out, 0)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.json")} == before
    assert len(before) == 1 + len(arm_names(SETTING))


@pytest.mark.slow
def test_the_judge_differs_from_the_guide_and_masses_are_shares(out: Path) -> None:
    field = make_field(SETTING, None, 0, out / "networks")
    judge = Judge(field, out / "instruments" / f"{SETTING.name}-0-judge")
    guide = FieldInstruments(field, out / "instruments").naturalness
    assert judge.by_features.vae.latent != guide.vae.latent
    assert not torch.isin(field.judging.ids, field.seen.ids).any()
    assert float(judge.masses.sum()) == pytest.approx(1)
    assert torch.equal(judge.cells(field.judging.x[:50]), torch.arange(50))
    empty = judge.judge(field.truth.x[:0])
    assert len(empty.natural) == len(empty.counted) == 0


@pytest.mark.slow
def test_a_search_counts_what_the_judge_counts(out: Path) -> None:
    field = make_field(SETTING, None, 0, out / "networks")
    judge = Judge(field, out / "instruments" / f"{SETTING.name}-0-judge")
    guide = FieldInstruments(field, out / "instruments").naturalness
    seeds = search_seeds(field)
    recipe = SETTING.declared
    fuzzer = RandomConditions(recipe=recipe)
    found = run_search(SearchArm(fuzzer=fuzzer, seeds=20), field, seeds, judge, guide, "random")
    suite = fuzzer(field.model, seeds, generator=spawn(0, "finding", "random"))
    assert found.failures == len(suite) == len(suite.failures())
    counted = judge.judge(suite.x).counted
    assert len(found.cell) == int(counted.sum()) > 0
    hit = judge.cells(suite.x[counted]).unique()
    assert found.total == pytest.approx(float(judge.masses[hit].sum()))
    assert found.within(found.seconds) == found.total
    assert found.within(0.0) == 0.0
    weak = SearchArm(fuzzer=FGSM(radius=1e-6), seeds=2)
    none = run_search(weak, field, field.model.correct(seeds), judge, guide, "none")
    assert (none.failures, none.total, none.rate) == (0, 0.0, 0.0)


def test_a_result_counts_a_cell_once_and_round_trips(tmp_path: Path) -> None:
    found = SearchResult(
        seeds=4,
        seconds=2.0,
        failures=5,
        natural=4,
        guided=4,
        origin=torch.tensor([0, 1, 1, 3]),
        cell=torch.tensor([7, 7, 2, 9]),
        mass=torch.tensor([0.1, 0.1, 0.2, 0.4], dtype=torch.float64),
        by_features=0.3,
        truly=0.1,
    )
    assert found.total == pytest.approx(0.7)
    assert found.rate == pytest.approx(0.35)
    assert found.cells == 3
    assert found.within(1.0) == pytest.approx(0.3)  # of the first two seeds
    results.save(found, tmp_path / "found.json")
    assert results.load(tmp_path / "found.json", SearchResult).total == found.total
