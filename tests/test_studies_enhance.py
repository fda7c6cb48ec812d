"""The study of enhancement: claims follow from numbers, and no case that is learned from judges."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from operant import Samples, results
from operant.cli import app
from operant.defend import AccuracyChange, Success, TransferCalibration
from operant_studies.defences.suites import SuiteFolders, attacks_of, prepared
from operant_studies.enhance import tables
from operant_studies.enhance.page import write_page
from operant_studies.enhance.results import EnhanceResults, change, rate
from operant_studies.enhance.retraining import RetrainOutcome, cases_of, searched_from, test_of
from operant_studies.enhance.settings import CONTROL, GROUPS, enhance_plans
from operant_studies.kuk.models import PreparedModel
from operant_studies.kuk.paper import ATTACKS
from operant_studies.shared import Mean, mean, run_step

test_of.__test__ = False  # it is no test
SMALL = {e.name: e for e in enhance_plans("small")}
SMOKE = enhance_plans("smoke")[0]


# Made up


def enhanced(group: str, gain: float | None, transfer: float = 0.5) -> RetrainOutcome:
    if gain is None:
        return RetrainOutcome(group=group, cases=2, accuracy=None, transfer=None, epoch=0, seconds=1.0)
    numbers = {"before": 0.9, "after": 0.9 + gain, "change": gain, "lower": gain - 0.01, "upper": gain + 0.01}
    accuracy = AccuracyChange(**numbers, gained=10, lost=10, n=1000, confidence=0.95)
    k = round(1000 * transfer)
    rate = Success(defence="bim-linf-minimal", kind="all", pattern="all", k=k, n=1000, seeds=1000, lower=0.0, upper=1.0)
    calibration = TransferCalibration(rates=(rate,), mean=transfer, confidence=0.95)
    return RetrainOutcome(group=group, cases=40, accuracy=accuracy, transfer=calibration, epoch=1, seconds=1.0)


def written(
    out: Path, gains: dict[str, list[float | None]], transfer: dict[str, list[float]] | None = None, name: str = "nin"
) -> EnhanceResults:
    """Groups that are not named gain nothing, nearly, and read half of the attacks."""
    folder, plan = out / "enhance" / name, SMALL[name]
    folder.mkdir(parents=True, exist_ok=True)
    for group in GROUPS:
        each = gains.get(group, [0.001, 0.0, -0.001])
        rates = (transfer or {}).get(group, [0.5, 0.51, 0.49])
        for run, (gain, share) in enumerate(zip(each, rates, strict=True)):
            results.save(enhanced(group, gain, share), folder / f"{run_step(group, run)}.json")
    return EnhanceResults(plan, SuiteFolders(out))


def verdicts(found: EnhanceResults) -> dict[str, str]:
    rows = [line.split(" | ") for line in tables.claims([found]).splitlines() if "**" in line and line.startswith("|")]
    return {cells[0].strip("| "): cells[-1].strip("| *") for cells in rows}


def test_something_is_best_only_if_it_leads_all_others() -> None:
    def lead(lower: float, upper: float) -> Mean:
        return Mean(value=(lower + upper) / 2, lower=lower, upper=upper, n=3)

    wide = [lead(-0.5, 0.5)] * 2
    assert tables.best([lead(0.1, 0.2), lead(0.01, 0.5)], wide) == "held"
    assert tables.best([lead(0.1, 0.2), lead(-0.1, 0.5)], wide) == "not decided"
    assert tables.best([lead(0.1, 0.2), lead(-0.2, -0.1)], wide) == "not decided"  # not by the wider intervals
    assert tables.best([lead(0.1, 0.2), lead(-0.2, -0.1)], [*wide, lead(-0.2, -0.1)]) == "not held"


def test_what_the_paper_found_would_be_held(tmp_path: Path) -> None:
    gains = {"HL": [0.030, 0.031, 0.033], "LL": [0.010, 0.011, 0.012], "DeepFool": [-0.02, -0.021, -0.024]}
    gains["C&W"] = [-0.03, -0.031, -0.034]
    outcome = verdicts(written(tmp_path, gains, {"LH": [0.95, 0.951, 0.952]}))
    assert set(outcome.values()) == {"held"}
    assert len(outcome) == 11


def test_the_opposite_would_not_be_held(tmp_path: Path) -> None:
    gains = {"HL": [-0.030, -0.031, -0.033], "LL": [0.010, 0.011, 0.012], "DeepFool": [0.02, 0.021, 0.024]}
    gains["C&W"] = [0.03, 0.031, 0.034]
    outcome = verdicts(written(tmp_path, gains, {"LH": [0.05, 0.051, 0.052]}))
    assert set(outcome.values()) == {"not held"}


def test_without_cases_or_without_an_improvement_nothing_is_decided(tmp_path: Path) -> None:
    found = written(tmp_path, {"HL": [None] * 3, "DeepFool": [0.01, -0.01, 0.0]})
    outcome = verdicts(found)
    claims = ("HL data improve accuracy", "… most of all groups", "… by 64 %", "DeepFool data lower accuracy")
    assert {outcome[claim] for claim in claims} == {"not decided"}
    assert found.mean("HL", change) is None
    assert found.lead("HL", "LL", change) is None
    assert "HL" not in found.groups
    flat = written(tmp_path / "b", {"HL": [0.02, 0.021, 0.022]})
    assert verdicts(flat)["… by 64 %"] == "not decided"  # LL gains nothing, which nothing can be 64 % more than
    loss = written(tmp_path / "c", {"LL": [-0.02, -0.021, -0.022]})
    assert verdicts(loss)["… by 64 %"] == "not held"


def test_leads_are_paired_by_run(tmp_path: Path) -> None:
    found = written(tmp_path, {"HL": [0.01, 0.05, 0.09], CONTROL: [0.0, 0.04, 0.08]})
    lead = found.lead("HL", CONTROL, change)
    assert lead.value == pytest.approx(0.01)
    assert lead.upper - lead.lower < 1e-6
    assert found.mean("LH", rate) == mean([0.5, 0.51, 0.49])
    assert found.seconds == 3 * len(GROUPS)


def test_the_page_has_both_models_and_says_what_is_left_out(tmp_path: Path) -> None:
    both = [written(tmp_path, {"HL": [None] * 3}, name="lenet5"), written(tmp_path, {})]
    text = write_page(tmp_path, both, ["something is left out"], scale="small").read_text()
    for words in (
        "LeNet-5, MNIST | HL | 2, 2, 2 | left out",
        "NIN, CIFAR-10 | C&W | 40, 40, 40",
        "something is left out",
    ):
        assert words in text
    for word in ("nan", "None", "inf"):
        assert f" {word} " not in text
    assert "<svg" in (tmp_path / "enhance.svg").read_text()


def test_plans_are_those_of_the_study_of_defences() -> None:
    assert list(SMALL) == ["lenet5", "nin"]
    assert all(e.suites.runs == 3 for e in SMALL.values())
    assert set(GROUPS) == {"LL", "HH", "LH", "HL", *ATTACKS, CONTROL}
    for e in SMALL.values():
        rows = {"mnist": 60_000, "cifar10": 20_000}[e.suites.subject.dataset]  # of the smaller CIFAR-10 that is at hand
        assert e.suites.runs * e.train + e.validation <= rows
        assert e.suites.runs * e.test <= 10_000 - e.suites.attacked - e.suites.runs * e.suites.seeds


# The study


def _used(given: PreparedModel) -> tuple[Samples, ...]:
    return given.inputs[: SMOKE.suites.attacked], searched_from(SMOKE, given)


@pytest.mark.slow
def test_it_runs_and_no_case_that_is_learned_from_judges(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["study", "enhance", "--scale", "smoke", "--out", str(out), "--workers", "1"])
    assert done.exit_code == 0, done.output
    page = (out / "enhance.md").read_text()
    for words in ("What held", "By group of cases", "Transfer calibration by attack", "What was run", "Run it again"):
        assert words in page
    folders = SuiteFolders(out)
    given = prepared(SMOKE.suites, None, folders)
    each = [test_of(SMOKE, given, run, None) for run in range(SMOKE.suites.runs)]
    judged, used = (torch.cat([part.ids for part in parts]) for parts in (each, _used(given)))
    assert [len(part) for part in each] == [SMOKE.test] * SMOKE.suites.runs
    assert len(judged.unique()) == len(judged)
    assert not bool(torch.isin(judged, used).any())
    for run in range(SMOKE.suites.runs):
        attacks = attacks_of(SMOKE.suites, given, ATTACKS, run, folders).samples()
        for group in GROUPS:
            cases = cases_of(SMOKE, given, group, run, folders)
            assert not bool(torch.isin(cases.ids, attacks.ids).any())
            kept = results.load(out / "enhance" / "lenet5" / f"{run_step(group, run)}.json", RetrainOutcome)
            assert kept.cases == len(cases) <= SMOKE.cases
    learned = [e for each in EnhanceResults(SMOKE, folders).runs.values() for e in each.values() if e.accuracy]
    assert {e.group for e in learned} >= {CONTROL, "FGSM"}
    assert all(e.accuracy.n == SMOKE.test for e in learned)
