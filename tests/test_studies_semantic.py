"""The study of semantic tests: roles share no image, counts are right, claims follow from numbers, and it runs."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from operant import Classifier, Samples, Suite, spawn
from operant.cli import app
from operant.generate import PGD, FeatureSource, Quality, Validity
from operant_studies.faults import FEATURES as KNOWN
from operant_studies.faults import Confirmation, Cue
from operant_studies.semantic import claims, paper, plain_tables, tables
from operant_studies.semantic.fields import SemanticImages
from operant_studies.semantic.gallery import CELL, draw_pairs
from operant_studies.semantic.injected import (
    ANCHORED,
    ARMS,
    FEATURES,
    PIXELS,
    SEARCHES,
    SOUND,
    FaultCounts,
    FaultResult,
    GalleryPairs,
    count,
    rated_tests,
    right_seeds,
)
from operant_studies.semantic.instruments import ANCHORS, JUDGES, RatedSource
from operant_studies.semantic.outcome import (
    all_of,
    at_least,
    beyond,
    counts,
    difference,
    exceeds,
    found,
    found_by_either,
    mean_of,
    pooled,
    revealing,
    shares,
)
from operant_studies.semantic.robust import fine_tune, worst
from operant_studies.semantic.settings import settings
from operant_studies.semantic.summary import summary
from operant_studies.semantic.transfer import (
    HUNTS,
    WIDE,
    ModelRobustness,
    TransferCounts,
    TransferResult,
    UntargetedResult,
    UntargetedTests,
    count_transfer,
    judge_again,
)

SMOKE = settings("smoke")[0]
GEOMETRY = {"position", "size", "slant", "rotation", "stroke width"}


# What is run


def test_small_has_the_promised_faults() -> None:
    small = settings("small")
    flaws = [flaw for s in small for flaw in s.flaws]
    assert len(flaws) >= 8
    assert sum(flaw.feature in GEOMETRY for flaw in flaws) >= 4
    assert sum(KNOWN[flaw.feature].colour for flaw in flaws) >= 2
    assert {s.title for s in small if s.flaws} == {"MNIST", "Fashion-MNIST", "Coloured MNIST"}
    assert all(len(s.seeds) == 3 for s in small)
    assert all(sum(n for _, n in s.deal) <= 60_000 for s in small)
    assert all(s.rated + s.held <= 10_000 for s in small)
    assert small[-1].hunted >= 100
    with pytest.raises(ValueError, match="scale must be smoke or small, got 'paper'"):
        settings("paper")


def test_the_papers_numbers_are_its_tables() -> None:
    assert len(paper.TABLE_2) == 8
    assert (paper.LEAST, paper.MOST) == (0.09, 0.94)
    assert all(pixels > features for pixels, features in paper.TABLE_3.values())
    assert [sum(both[i] for both in paper.TABLE_2.values()) for i in (0, 1)] == [407, 299]
    assert [sum(both[i] for both in paper.TABLE_3.values()) for i in (0, 1)] == [177, 98]


def test_roles_share_no_image() -> None:
    field = SemanticImages(SMOKE, None)
    roles = [role for role, _ in SMOKE.deal]
    assert {"source", "model", "likelihood", *JUDGES, *ANCHORS} == set(roles)
    ids = torch.cat([field.clean(role).ids for role in (*roles, "rated", "held")])
    assert len(ids.unique()) == len(ids)
    with pytest.raises(ValueError, match="role must be one of .*, got nobody"):
        field.clean("nobody")


def test_features_are_independent_of_the_class_except_the_faults() -> None:
    field = SemanticImages(SMOKE, None)
    flaw = SMOKE.flaws[0]
    neutral, without = field.neutral("source", 1), field.neutral("source", 1, but=flaw.fault)
    assert torch.equal(neutral.labels, field.clean("source").labels)
    values = flaw.fault.feature.measure(neutral.x)
    high = values > values.mean()
    of_class = [float(high[neutral.labels == c].double().mean()) for c in range(10)]
    assert all(0.2 < share < 0.8 for share in of_class)
    assert float(flaw.fault.feature.measure(without.x).std()) < 0.2 * float(values.std())
    assert not torch.equal(neutral.x, field.neutral("source", 2).x)


# Counts and shares


def made_suite(margin: list[float], valid: list[float], shift: list[float]) -> Suite:
    """Bars of class 0, moved to the right by so many pixels, that the model takes for 1 by a margin."""
    n = len(margin)
    x0 = torch.zeros(n, 1, 8, 8)
    x0[:, :, :, 2] = 1.0
    x = torch.stack([torch.roll(image, int(by), 2) for image, by in zip(x0, shift, strict=True)])
    seeds = Samples(x0 - torch.arange(n).view(-1, 1, 1, 1) * 1e-6, torch.zeros(n, dtype=torch.int64))
    columns = {"margin": torch.tensor(margin), "valid": torch.tensor(valid)}
    prediction = (torch.tensor(margin) > 0).long()
    return Suite.of(x, seeds=seeds, origin=torch.arange(n), prediction=prediction, method="made", columns=columns)


def test_a_test_counts_if_it_fails_by_the_margin_and_reveals_if_its_feature_moved() -> None:
    suite = made_suite([3.0, 3.0, 0.5, 3.0, -1.0], [1, 0, 1, 1, 1], [4, 4, 4, 0, 4])
    fault = replace(SMOKE.flaws[0], feature="position", classes=(0, 1)).fault
    cue = Cue(feature="position", classes=(0, 1), means=(-0.2, 0.2), stds=(0.05, 0.05))
    total = count(suite, fault=fault, cue=cue, confidence=1.0)
    assert total == FaultCounts(seeds=5, valid=4, failing=3, valid_failing=2, revealing=2, valid_revealing=1)
    assert (total + total).seeds == 10


def test_without_seeds_there_are_no_tests() -> None:
    """As for a model that never predicts a class."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).double()
    source, model = FeatureSource(module=Bars().double(), latent=2, classes=4), Classifier(module)
    instruments = SimpleNamespace(source=source, validity=Validity(judges=(model,)))
    none = right_seeds(source, (model, model), 3, [1], generator=spawn(0))[:0]
    suite = rated_tests(instruments, PGD(radius=0.1, target=2), model, none, generator=spawn(0))
    fault = replace(SMOKE.flaws[0], feature="position", classes=(1, 2)).fault
    cue = Cue(feature="position", classes=(1, 2), means=(-0.2, 0.2), stds=(0.05, 0.05))
    assert count(suite, fault=fault, cue=cue, confidence=1.0) == counts_of(0, 0)
    assert count_transfer(Suite.concat([suite, suite]), {"r": model}, 1.0).right == {"r": 0}


class Bars(nn.Module):
    """A bar in a column of its own for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 64)

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bars = torch.nn.functional.one_hot(2 * y, 8).to(z)[:, None, None, :].expand(-1, 1, 8, 8)
        return (bars + 0.01 * self.fc(z).view(-1, 1, 8, 8)).clamp(0, 1)


def counts_of(k: int, n: int) -> FaultCounts:
    return FaultCounts(seeds=n, valid=n, failing=n, valid_failing=n, revealing=k, valid_revealing=k)


def tried_of(shares: dict[str, int]) -> FaultResult:
    """Of ten tests each way, so many reveal."""
    nothing = torch.empty(0)
    return FaultResult(
        faulty=Confirmation(aligned=0.95, opposed=0.05, images=20),
        sound=Confirmation(aligned=0.9, opposed=0.9, images=20),
        cue=Cue(feature="background", classes=(3, 8), means=(0.0, 1.0), stds=(0.1, 0.1)),
        arms={arm: (counts_of(shares.get(arm, 0), 10), counts_of(0, 10)) for arm in ARMS},
        pairs=GalleryPairs(x0=nothing, x=nothing, label=nothing, prediction=nothing, reveals=nothing),
        seconds=1.0,
    )


def test_shares_are_of_both_ways_or_of_one() -> None:
    each = [tried_of({FEATURES: k}) for k in (8, 10)]
    assert revealing(counts(each, FEATURES), valid=True) == [0.4, 0.5]
    assert revealing(counts(each, FEATURES, 0), valid=True) == [0.8, 1.0]
    assert revealing(
        [FaultCounts(seeds=3, valid=0, failing=2, valid_failing=0, revealing=1, valid_revealing=0)], valid=True
    ) == [None]
    assert mean_of([None, None]) == "no tests"
    assert mean_of([0.5, None]) == "50.0 (1 of 2 repetitions)"
    assert mean_of([1.0, 1.0]) == "100.0"  # no interval where all agree


def test_a_difference_is_taken_seed_by_seed_and_decides() -> None:
    assert difference([None, 0.4], [0.1, None]) is None
    assert exceeds([None], [0.1]).verdict == "not decided"
    value = difference([0.9, 0.8, None], [0.1, 0.1, 0.1])
    assert value is not None
    assert (round(value.value, 6), value.n) == (0.75, 2)
    assert exceeds([0.9, 0.8, 0.85], [0.1] * 3).verdict == "held"
    assert exceeds([0.1, 0.12, 0.11], [0.9] * 3).verdict == "not held"
    assert exceeds([0.1, 0.9, 0.5], [0.4] * 3).verdict == "not decided"
    assert exceeds([0.9], [0.1]).verdict == "not decided"
    assert exceeds([0.9, None, None], [0.1, 0.1, 0.1]).text == "80.0 (1 of 3 repetitions)"
    assert exceeds([1.0] * 3, [0.09] * 3).verdict == "not decided"
    assert exceeds([1.0] * 3, [0.09] * 3, tests=60).verdict == "held"
    assert exceeds([0.0] * 3, [0.09] * 3, tests=400).verdict == "not held"
    assert exceeds([0.1] * 3, [0.09] * 3, tests=60).verdict == "not decided"


def test_intervals_end_where_shares_and_differences_do() -> None:
    assert str(exceeds([1.0, 0.9, 0.7], [0.0] * 3)) == "**held** 86.7 [48.7, 100.0]"
    assert exceeds([0.0, 0.9, 0.1], [1.0, 0.9, 0.9]).text.startswith("-60.0 [-100.0,")
    assert str(at_least([1.0, 0.9, 0.9], 0.7)) == "**held** 93.3 [79.0, 100.0]"
    assert at_least([0.6, 0.7, 0.8], 0.7).verdict == "not decided"
    assert at_least([0.5, 0.52, 0.51], 0.7).verdict == "not held"
    assert at_least([0.9, None], 0.7).verdict == "not decided"
    assert at_least([1.0] * 3, 0.7, tests=100).text == "100.0 [90.0, 100.0]"
    assert at_least([None], 0.7).verdict == "not decided"


def test_all_means_all() -> None:
    assert str(all_of([torch.ones(20), torch.ones(20)])) == "**held** 40 of 40, 100.0 [91.2, 100.0]"
    assert all_of([torch.ones(200), torch.tensor([1.0, 0.0])]).verdict == "not held"
    assert all_of([torch.empty(0)]).verdict == "not decided"
    assert pooled([torch.ones(3), torch.zeros(1)]) == "3 of 4, 75.0 [19.4, 99.4]"


# Tables


def outcome_of(faulty: tuple[int, ...], sound: tuple[int, ...]) -> SimpleNamespace:
    each = [tried_of({FEATURES: a, ANCHORED: a, SOUND + FEATURES: b}) for a, b in zip(faulty, sound, strict=True)]
    return SimpleNamespace(setting=SMOKE, tried={SMOKE.flaws[0]: each}, rated=(rated_of(0.95),))


def rated_of(consistency: float) -> RatedSource:
    quality = Quality(consistency=consistency, accuracy=0.95, frechet=1.0, distance=0.1, variety=0.8, images=100)
    return RatedSource(kind="gan", quality=quality, seconds=3.0)


def row_with(text: str, *words: str) -> str:
    rows = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(rows) == 1, rows
    return rows[0]


def test_claims_about_faults_follow_from_the_numbers() -> None:
    row = row_with(claims.claims([outcome_of((9, 8, 10), (1, 0, 1))], None), "| FeatureFuzz |")
    assert row.count("**held**") == 4
    row = row_with(claims.claims([outcome_of((0, 1, 0), (9, 8, 10))], None), "| FeatureFuzz |")
    assert "**not held**" in row.split("|")[3]
    assert "**held**" not in row


def test_table_2_has_all_and_valid_tests_of_every_search() -> None:
    text = tables.table_2([outcome_of((9, 8, 10), (1, 0, 1))])
    name = "Digits: 3 or 8 by background"
    assert "45.0 [32.6, 57.4]" in row_with(text, name, "3.3 [0.0, 10.5]")
    assert text.count(f"| {name} | faulty |") == text.count(f"| {name} | sound |") == len(SEARCHES)
    assert row_with(text, name, "| faulty | FeatureFuzz |").endswith("| 60 | 60 | 60 | 60 | 27 | 27 |")
    assert "3 of 3" in row_with(text, name, "0 to 1")


def shots_made(failing: list[float], valid: list[float], far: list[float]) -> UntargetedTests:
    values = torch.tensor(far).double()
    return UntargetedTests(
        failing=torch.tensor(failing).double(),
        valid=torch.tensor(valid).double(),
        linf=values,
        l2=10 * values,
        perturbation=values,
    )


def plain_of(valid_right: int) -> SimpleNamespace:
    """Three seeds: half of the tests are valid; robust models get all of PGD's right, and none of ours but these."""
    shots = {name: shots_made([1, 1, 1, 0], [1, 1, 0, 1], [0.2, 0.5, 0.6, 0.1]) for name in HUNTS}
    shots[WIDE] = shots_made([0, 1, 1, 1], [1, 1, 0, 1], [0.2, 0.5, 0.6, 0.1])
    hunted = [UntargetedResult(accuracy=0.97, shots=shots, seconds=1.0) for _ in range(3)]
    ours = {"seeds": 20, "failing": 20, "valid": 10, "right_seeds": {"r": 20}}
    moved = {name: TransferCounts(**ours, right={"r": 2}, right_valid={"r": valid_right}) for name in SEARCHES}

    def of(seed: int) -> TransferResult:
        pixels = TransferCounts(**ours, right={"r": 18 + seed}, right_valid={"r": 9})
        return TransferResult(
            moved={"m": moved | {PIXELS: pixels}}, robust={"r": ModelRobustness(clean=0.98, pgd=0.9)}, seconds=1.0
        )

    setting = settings("smoke")[1]
    return SimpleNamespace(
        setting=replace(setting, seeds=(0, 1, 2)), hunted=hunted, transferred=[of(i) for i in range(3)], rated=()
    )


def test_shares_of_seeds_and_distances_are_of_failing_tests() -> None:
    shots = [h.shots[FEATURES] for h in plain_of(0).hunted]
    assert shares(found(shots, valid=False)) == [0.75] * 3
    assert shares(found(shots, valid=True)) == [0.5] * 3
    wide = [h.shots[WIDE] for h in plain_of(0).hunted]
    assert shares(found_by_either(shots, wide, valid=True)) == [0.75] * 3
    assert shares(beyond(shots, "linf", 0.3, valid=False)) == [2 / 3] * 3
    assert shares(beyond(shots, "linf", 0.3, valid=True)) == [0.5] * 3
    assert shares(beyond([shots_made([0], [1], [0.9])], "l2", 2.0, valid=True)) == [None]


def test_transfer_is_claimed_for_all_and_for_valid_tests_apart() -> None:
    rows = claims.transfer_findings(plain_of(10))
    assert len(rows) == 2
    assert all(row[3].verdict == "held" for row in rows)
    assert all(row[4].verdict != "held" for row in rows)  # robust models get all valid ones right
    text = plain_tables.table_3(plain_of(10))
    assert "| 60 | 60 | 30 | 10.0" in row_with(text, "| m | FeatureFuzz |")


def test_shares_of_seeds_are_by_repetitions_and_together() -> None:
    text = claims.claims([], plain_of(10))
    assert "Injected faults" not in text
    assert row_with(text, "| both anchored searches").endswith("| 9 of 12, 75.0 [42.8, 94.5] |")
    assert row_with(text, "| 0.3 in L-infinity").count("**not held**") == 2
    assert "| 6 of 12, 50.0 [21.1, 78.9] |" in row_with(plain_tables.seeds_found(plain_of(10)), "| FeatureFuzz |")


def test_the_summary_follows_from_the_numbers() -> None:
    good, bad = (outcome_of(faulty, (1, 0, 1)) for faulty in ((9, 8, 10), (1, 1, 0)))
    text = " ".join(summary([good], plain_of(10)).split())
    assert "Of valid tests, 45.0 % reveal the fault; with a sound model, 3.3 % seem to" in text
    assert "More than with the sound model: held for 1 of 1;" in text
    assert "exceed it for 0 of 1" in text
    assert "get 100.0 % of valid feature tests right" in text
    assert "held in 0 of 2 comparisons" in text
    assert "held for 0 of 1, not decided for Digits: 3 or 8 by background" in " ".join(summary([bad], None).split())
    assert all(len(line) <= 120 for line in summary([good], plain_of(10)).splitlines())


def test_sources_that_fail_are_listed_with_numbers() -> None:
    text = plain_tables.sources([outcome_of((1,), (1,))], [rated_of(0.3)])
    assert "no source of a few minutes passes" in text
    assert "in only 30 % of its images" in text
    assert row_with(text, "CIFAR-10 |", "gan").endswith("| no |")
    assert "was not tried" in plain_tables.sources([outcome_of((1,), (1,))], [])


# Transfer, exceeds


def flat_model(bias: float) -> Classifier:
    """Says 1 where there is more ink on the right than on the left, give or take."""
    linear = nn.Linear(64, 2)
    side = torch.cat([-torch.ones(8, 4), torch.ones(8, 4)], 1).flatten()
    linear.weight.data = torch.stack([-side, side])
    linear.bias.data = torch.tensor([0.0, bias])
    return Classifier(nn.Sequential(nn.Flatten(), linear), bounds=(-1.0, 1.0))


def test_tests_are_shown_to_others_and_judged_again() -> None:
    suite = made_suite([3.0, 3.0, 0.5], [1, 0, 1], [4, 4, 4])
    total = count_transfer(suite, {"fooled": flat_model(0.0), "firm": flat_model(-100.0)}, 1.0)
    assert (total.seeds, total.failing, total.valid) == (3, 2, 1)
    assert total.right == {"fooled": 0, "firm": 2}
    assert total.right_valid == {"fooled": 0, "firm": 1}
    assert total.right_seeds == {"fooled": 2, "firm": 2}
    again = judge_again(suite, flat_model(0.0), 1.0)
    assert again.failing.tolist() == [1, 1, 1]  # by the given model, not by the columns of the suite
    assert again.linf.tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert bool(again.perturbation.isnan().all())


def test_fine_tuning_meets_the_worst_of_each_neighbourhood() -> None:
    model = flat_model(0.0)
    x, y = torch.rand(20, 1, 8, 8, generator=spawn(0)), torch.arange(20) % 2
    moved = worst(model.unwrap(), x, y, radius=0.1, generator=spawn(1))
    assert float((moved - x).abs().max()) <= 0.1 + 1e-6
    assert 0 <= float(moved.min()) <= float(moved.max()) <= 1
    side = torch.cat([-torch.ones(8, 4), torch.ones(8, 4)], 1) * (1 - 2 * y).view(-1, 1, 1, 1)
    assert torch.allclose(moved, (x + 0.1 * side).clamp(0, 1), atol=1e-6)  # of a linear model it is known
    before = {name: values.clone() for name, values in model.unwrap().state_dict().items()}
    options = {"radius": 0.1, "epochs": 2, "batch_size": 8, "learning_rate": 1e-2}
    one, two = (fine_tune(model, Samples(x, y), **options, generator=spawn(2)) for _ in range(2))
    assert torch.equal(one.batched_logits(x), two.batched_logits(x))
    assert not torch.equal(one.batched_logits(x), model.batched_logits(x))
    assert all(torch.equal(values, before[name]) for name, values in model.unwrap().state_dict().items())


# The gallery


def test_a_sheet_has_seed_and_test_side_by_side(tmp_path: Path) -> None:
    flaw = SMOKE.flaws[0]
    pairs = GalleryPairs(
        x0=torch.zeros(3, 1, 8, 8),
        x=torch.full((3, 1, 8, 8), 0.5),
        label=torch.tensor([3, 3, 8]),
        prediction=torch.tensor([8, 8, 3]),
        reveals=torch.tensor([True, False, True]),
    )
    draw_pairs(pairs, flaw, SMOKE.names, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.getpixel((CELL // 2, CELL // 2)) == (0, 0, 0)
        assert sheet.getpixel((CELL + 18 + CELL // 2, CELL // 2)) == (128, 128, 128)


# The whole


@pytest.mark.slow
def test_the_study_runs_on_digits_and_resumes(tmp_path: Path) -> None:
    arguments = ["study", "semantic", "--scale", "smoke", "--out", str(tmp_path), "--workers", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "semantic.md").read_text()
    for heading in (
        "In short",
        "What held",
        "Table 2",
        "Seeds with a valid test",
        "Fig. 2",
        "Table 3",
        "Sources",
        "What was run",
    ):
        assert f"## {heading}" in page
    assert "Digits: 3 or 8 by background" in page
    assert "nan" not in page
    assert "<svg" in (tmp_path / "semantic-distances.svg").read_text()
    gallery = (tmp_path / "semantic-gallery.md").read_text()
    sheets = sorted((tmp_path / "semantic-gallery").glob("*.png"))
    assert all(f"semantic-gallery/{sheet.name}" in gallery or "No valid test" in gallery for sheet in sheets)
    assert len(sheets) == len(SMOKE.flaws)
    numbers = json.loads((tmp_path / "semantic.json").read_text())
    assert len(numbers["faults"]["digits"]) == len(SMOKE.flaws)
    assert len(numbers["transferred"]) == len(SMOKE.seeds)
    steps = {file: file.stat().st_mtime_ns for file in tmp_path.glob("**/*.json") if "steps" in file.parts}
    assert steps
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert all(file.stat().st_mtime_ns == when for file, when in steps.items())
    assert (tmp_path / "semantic.md").read_text() == page
    next(tmp_path.glob("steps/*/hunted.json")).unlink()  # as if interrupted there
    assert CliRunner().invoke(app, arguments).exit_code == 0
