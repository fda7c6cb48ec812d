"""The study of defences: its tables are the paper's, nothing is fitted on what judges it, and counts become claims."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from operant import Suite, results, spawn
from operant.assess import clopper_pearson_interval
from operant.cli import app
from operant.data import Samples
from operant.defend import DefenceTable, Success
from operant.defend.evaluate import KINDS, interval
from operant.defend.mutation import InaccurateMutants
from operant_studies import defences
from operant_studies.defences import fitting, paper, suites, tables
from operant_studies.defences.judging import COMMON, CONFIRMED, NOISE, UNCOMMON, DefenceOutcome
from operant_studies.defences.page import write_page
from operant_studies.defences.results import DefenceResults, average
from operant_studies.defences.settings import (
    CLASSIFIER,
    MUTATION,
    SQUEEZING,
    TABLE_6,
    TABLE_7,
    DefencePlan,
    SeedChunk,
    plans,
)
from operant_studies.defences.suites import SuiteFolders, SuiteRecord
from operant_studies.kuk.models import prepare
from operant_studies.kuk.paper import ATTACKS
from operant_studies.kuk.results import search_name
from operant_studies.kuk.settings import PATTERNS, subjects
from operant_studies.shared import Mean, run_step

SMALL = {plan.name: plan for plan in plans("small")}
SMOKE = plans("smoke")[0]


# Plans


def test_every_cell_of_both_tables_is_tried_and_known() -> None:
    assert list(SMALL) == ["lenet5", "resnet20", "nin", "mobilenet"]
    for name, plan in SMALL.items():
        assert plan.defences == (TABLE_7 if name == "mobilenet" else TABLE_6)
        assert set(paper.TABLES[name]) == set(plan.defences)
        assert plan.runs == (1 if name == "mobilenet" else 3)
        assert plan.runs * plan.seeds * len(PATTERNS) >= 120  # so that a hundred can be reached


@pytest.mark.parametrize("plan", [*SMALL.values(), SMOKE], ids=lambda plan: plan.title)
def test_searches_begin_where_those_of_the_kuk_study_do(plan: DefencePlan) -> None:
    """Chunks are whole chunks of the KuK study, no seed is searched from in two runs, and none fits a detector."""
    used = [part for run in range(plan.runs) for part in plan.parts(run)]
    seeds = [seed for _, _, first, after in used for seed in range(first, after)]
    assert len(set(seeds)) == len(seeds) >= plan.runs * plan.seeds
    for of, chunk, first, after in used:
        start = of * plan.subject.seeds + chunk * plan.subject.chunk
        assert (first, after) == (start, min(start + plan.subject.chunk, (of + 1) * plan.subject.seeds))
    assert max(seeds) < plan.runs * plan.repeats * plan.subject.seeds
    assert plan.wide.seeds * plan.wide.runs >= plan.runs * (plan.repeats * plan.subject.seeds + plan.benign)
    assert replace(plan.wide, runs=plan.subject.runs) == plan.subject
    for cut, known in (
        (plan.cut.generations, plan.subject.generations),
        (plan.cut.population, plan.subject.population),
    ):
        assert 1 < cut <= known


@pytest.mark.parametrize("plan", SMALL.values(), ids=lambda plan: plan.title)
def test_defences_are_judged_on_attacks_that_none_was_shown(plan: DefencePlan) -> None:
    for run in range(plan.runs):
        assert set(plan.shown(run)) | set(plan.judged(run)) == set(ATTACKS)
        assert not set(plan.shown(run)) & set(plan.judged(run))
        assert len(plan.judged(run)) >= 2
    assert bool(plan.shown(0)) == (CLASSIFIER in plan.defences)
    learned = {method for run in range(plan.runs) for method in plan.shown(run)}
    assert learned == (set(ATTACKS) if plan.shown(0) else set())


# Counts, made up


def table_of(defence: str, counts: dict[tuple[str, str], tuple[int, int]]) -> DefenceTable:
    rows = [
        Success(
            defence=defence,
            kind=kind,
            pattern=pattern,
            k=k,
            n=n,
            seeds=n,
            **dict(zip(("lower", "upper"), interval(k, n, 0.95), strict=True)),
        )
        for (kind, pattern), (k, n) in counts.items()
    ]
    return DefenceTable(rows=tuple(rows), detectors=(), confidence=0.95)


def tried(defence: str, **counts: tuple[int, int]) -> DefenceOutcome:
    """Successes and cases by data; of none, there is no table."""
    tables = {
        data: table_of(defence, {(kind, "all"): each for kind in KINDS} | {("adversarial", "HL"): each})
        for data, each in counts.items()
        if each[1]
    }
    return DefenceOutcome(defence=defence, tables=tables, note="", seconds=60.0)


def written(folders: SuiteFolders, plan: DefencePlan, falls: dict[str, list[float]]) -> DefenceResults:
    """A model whose defences stop 190 of 200 common cases, and of uncommon ones a share that is smaller by so much."""
    for defence, each in falls.items():
        for run, fall in enumerate(each):
            k = round(200 * (0.95 - fall))
            place = folders.out / "defences" / plan.name / f"{run_step(defence, run)}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            data = {COMMON: (190, 200), UNCOMMON: (k, 200), CONFIRMED: (k // 2, 100), NOISE: (180, 200)}
            results.save(tried(defence, **data), place)
    return DefenceResults(plan, folders)


def test_counts_are_those_of_the_data_and_runs_are_pooled(tmp_path: Path) -> None:
    one = tried(MUTATION, common=(8, 10), uncommon=(4, 10), confirmed=(0, 0))
    assert [(row.k, row.n) if (row := one.row(data)) else None for data in (COMMON, UNCOMMON, CONFIRMED, NOISE)] == [
        (8, 10),
        (4, 10),
        None,
        None,
    ]
    assert one.row(UNCOMMON, "adversarial", "HL").k == 4
    assert one.row(UNCOMMON, "benign", "LH") is None
    found = written(SuiteFolders(tmp_path), SMALL["lenet5"], {MUTATION: [0.5, 0.6]})
    assert found.pooled(MUTATION, UNCOMMON) == (90 + 70, 400, 400)
    assert found.pooled(MUTATION, UNCOMMON, "benign", "LH") == (0, 0, 0)
    assert {run: row.value for run, row in found.rows(MUTATION, UNCOMMON).items()} == {0: 0.45, 1: 0.35}


def test_runs_are_paired_by_their_number(tmp_path: Path) -> None:
    found = written(SuiteFolders(tmp_path), SMALL["lenet5"], {MUTATION: [0.5, 0.6, 0.7]})
    place = tmp_path / "defences" / "lenet5" / f"{run_step(MUTATION, 1)}.json"
    results.save(tried(MUTATION, common=(190, 200)), place)  # a run without uncommon cases
    assert found.drops(MUTATION) == pytest.approx({0: 0.5, 2: 0.7})


def test_where_runs_agree_to_the_last_case_the_interval_is_that_of_the_cases(tmp_path: Path) -> None:
    same = written(SuiteFolders(tmp_path), SMALL["lenet5"], {MUTATION: [0.5, 0.5, 0.5]}).success(MUTATION, COMMON)
    lower, upper = interval(570, 600, 0.95)
    assert (same.value, same.lower, same.upper) == pytest.approx((0.95, lower, upper))


def test_kinds_counted_alike_do_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    for run, (benign, adversarial) in enumerate(((100, 10), (10, 100), (100, 4))):  # of the last, too few
        tables = {
            data: table_of(
                MUTATION, {("benign", "all"): (k * benign // 10, benign), ("adversarial", "all"): (m, adversarial)}
            )
            for data, k, m in ((COMMON, 9, adversarial), (UNCOMMON, 4, adversarial // 2))
        }
        place = tmp_path / "defences" / "lenet5" / f"{run_step(MUTATION, run)}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        results.save(DefenceOutcome(defence=MUTATION, tables=tables, note="", seconds=0.0), place)
    found = DefenceResults(SMALL["lenet5"], SuiteFolders(tmp_path))
    assert found.even_drops(MUTATION) == pytest.approx({0: 0.5, 1: 0.5})
    assert found.drops(MUTATION, data=NOISE) == {}


def test_falls_are_means_over_runs_and_of_one_run_newcombes(tmp_path: Path) -> None:
    folders = SuiteFolders(tmp_path)
    lenet = written(folders, SMALL["lenet5"], {d: [0.5, 0.52, 0.54] for d in TABLE_6})
    fall = lenet.drop(MUTATION)
    assert (fall.value, fall.n) == (pytest.approx(0.52), 3)
    assert lenet.size(UNCOMMON) == 600
    assert lenet.seconds == 15 * 60
    mobile = written(folders, SMALL["mobilenet"], {d: [0.3] for d in TABLE_7})
    fall = mobile.drop(MUTATION)
    (l1, u1), (l2, u2) = (interval(k, 200, 0.95) for k in (190, 130))
    assert fall.value == pytest.approx(0.3)
    assert fall.lower == pytest.approx(0.3 - math.hypot(0.95 - l1, u2 - 0.65))
    assert fall.upper == pytest.approx(0.3 + math.hypot(u1 - 0.95, 0.65 - l2))
    wide = mobile.drop(MUTATION, confidence=0.99)
    assert wide.lower < fall.lower
    assert wide.upper > fall.upper
    exact = clopper_pearson_interval(130, 200, confidence=0.95)
    assert mobile.success(MUTATION, UNCOMMON).lower == pytest.approx(exact.lower)


def test_the_average_is_over_models(tmp_path: Path) -> None:
    folders = SuiteFolders(tmp_path)
    lenet = written(folders, SMALL["lenet5"], {d: [0.5, 0.52, 0.54] for d in TABLE_6})
    mobile = written(folders, SMALL["mobilenet"], {d: [0.3] for d in TABLE_7})
    assert average([]) is None
    alone, both = average([lenet]), average([lenet, mobile])
    assert (alone.value, alone.lower) == pytest.approx((0.52, lenet.drop(MUTATION).lower))  # its cells are alike
    assert both.value == pytest.approx((0.52 + 0.3) / 2)
    half = math.hypot((alone.value - alone.lower) / 2, (0.3 - mobile.drop(MUTATION).lower) / 2)
    assert both.value - both.lower == pytest.approx(half)


def rows_of(text: str) -> dict[str, str]:
    """By claim, what became of it; of several models the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[-2].startswith("**"):
            found.setdefault(cells[1], cells[-2].strip("*"))
    return found


def test_claims_follow_from_numbers(tmp_path: Path) -> None:
    much = {d: [0.62, 0.6, 0.61] if d in (CLASSIFIER, MUTATION) else [0.3, 0.31, 0.32] for d in TABLE_6}
    strong = rows_of(tables.claims([written(SuiteFolders(tmp_path / "a"), SMALL["lenet5"], much)]))
    assert strong["success is lower on uncommon data"] == "held"
    assert strong["… by 35 points on average"] == "held"
    assert strong["… and by up to 79"] == "not held"
    assert strong["binary classifier and mutation-based detection lose more than the others"] == "held"
    assert strong["lower for feature squeezing"] == "held"
    assert strong["control: success is lower on uncommon data than on noise without selection"] == "held"
    assert strong["defences succeed on more than 90 % of common data, where the paper's do"] == "held"
    little = {d: [-0.03, -0.035, -0.04] if d == SQUEEZING else [0.1, 0.05, -0.04] for d in TABLE_6}
    weak = rows_of(tables.claims([written(SuiteFolders(tmp_path / "b"), SMALL["lenet5"], little)]))
    assert weak["success is lower on uncommon data"] == "not decided"
    assert weak["… by 35 points on average"] == "not held"
    assert weak["lower for mutation-based"] == "not decided"
    assert weak["lower for feature squeezing"] == "not held"
    assert len(strong) == len(weak) == 7 + len(TABLE_6)


def test_a_page_says_what_is_missing_and_prints_no_nonsense(tmp_path: Path) -> None:
    folders = SuiteFolders(tmp_path)
    lenet = written(folders, SMALL["lenet5"], {d: [0.5, 0.52, 0.54] for d in TABLE_6})
    none = {d: [0.3] for d in TABLE_7}
    mobile = written(
        folders, replace(SMALL["mobilenet"], subject=replace(SMALL["mobilenet"].subject, name="other")), none
    )
    text = write_page(
        tmp_path, [lenet, mobile], ["NIN, CIFAR-10 is left out because its weights are missing"], scale="small"
    ).read_text()
    assert "its weights are missing" in text
    assert "<svg" in (tmp_path / "defences.svg").read_text()
    for word in ("nan", "None", "inf]", "[-inf"):
        assert word not in text
    assert "3 runs, 600 common and 600 uncommon cases" in text


def test_up_to_is_held_if_one_is_for_certain_and_not_if_none_can_be() -> None:
    def fall(lower: float, upper: float) -> Mean:
        return Mean(value=(lower + upper) / 2, lower=lower, upper=upper, n=3)

    assert tables._up_to([fall(0.1, 0.2), fall(0.8, 0.9)], 0.79) == "held"
    assert tables._up_to([fall(0.1, 0.2), fall(0.7, 0.78)], 0.79) == "not held"
    assert tables._up_to([fall(0.1, 0.8), fall(0.7, 0.78)], 0.79) == "not decided"


# What is fitted


def test_no_training_input_of_any_run_chooses_the_epoch() -> None:
    for plan in [plan for plan in SMALL.values() if plan.train]:
        rows = {"mnist": 60_000, "cifar10": 20_000}[plan.subject.dataset]  # of the smaller CIFAR-10 that is at hand
        assert plan.runs * plan.train + plan.validation <= rows


def test_cases_of_another_search_are_not_taken_for_those_of_the_kuk_study() -> None:
    part = SeedChunk(run=1, number=2, first=0, end=5)
    assert suites.suite_name(SMALL["nin"], "LH", part) == search_name("LH", 1, "", 2)
    plan = SMALL["mobilenet"]
    assert suites.suite_name(plan, "LH", part) == f"own-{search_name('LH', 1, '', 2)}"
    assert plan.fuzz("LH").noise == pytest.approx(0.1)
    assert plan.fuzz("HL").noise is None


def test_mutants_have_the_first_rate_that_leaves_them_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fit(model: object, benign: object, *, rate: float, **options: object) -> str:
        asked.append(rate)
        if rate > 0.01:
            raise InaccurateMutants("only 3 of 30 are accurate")
        return f"detector {rate}"

    monkeypatch.setattr(fitting, "fit_mutation_detector", fit)
    plan = replace(SMOKE, mutation_rates=(0.05, 0.02, 0.01, 0.001))
    assert fitting._mutation(plan, None, None, 0) == ("detector 0.01", "rate 0.01, 12 mutants")
    assert asked == [0.05, 0.02, 0.01]
    with pytest.raises(InaccurateMutants):
        fitting._mutation(replace(plan, mutation_rates=(0.05, 0.02)), None, None, 0)


def test_any_part_of_the_training_inputs_has_all_classes() -> None:
    for rows in (slice(0, 300), slice(600, 900), slice(-100, None)):
        assert len(fitting.training_of(SMOKE.subject, None, rows).labels.unique()) == 10
    first, last = (fitting.training_of(SMOKE.subject, None, rows) for rows in (slice(0, 300), slice(-100, None)))
    assert not bool(torch.isin(first.ids, last.ids).any())


# Where suites come from


def test_suites_are_taken_from_the_kuk_study_only_if_it_is_the_same(tmp_path: Path) -> None:
    out, there = tmp_path / "out", tmp_path / "kuk"
    with pytest.raises(ValueError, match="holds no study with suites"):
        suites.check_folders(SuiteFolders(out, there), "smoke")
    (there / "steps" / "lenet5").mkdir(parents=True)
    results.write_atomically(there / "study.json", json.dumps({"subjects": str(subjects("smoke"))}).encode())
    suites.check_folders(SuiteFolders(out, there), "smoke")
    with pytest.raises(ValueError, match="another scale or with other settings"):
        suites.check_folders(SuiteFolders(out, there), "small")
    for name in ("nin.safetensors", "nin.json"):
        (there / name).write_text("these")
    (tmp_path / "other.safetensors").write_text("those")
    with pytest.raises(ValueError, match="has weights of NIN other than"):
        suites.check_folders(SuiteFolders(out, there), "smoke", tmp_path / "other.safetensors")
    suites.check_folders(SuiteFolders(out, there), "smoke", there / "nin.safetensors")


def test_a_suite_counts_once_it_is_whole(tmp_path: Path) -> None:
    folders = SuiteFolders(tmp_path / "out", tmp_path / "kuk")
    seeds = Samples(torch.rand(3, 1, 4, 4, generator=spawn(0)), torch.arange(3))
    suite = Suite.of(seeds.x, seeds=seeds, origin=torch.arange(3), prediction=torch.zeros(3), method="fgsm")
    place = tmp_path / "kuk" / "suites" / "lenet5" / "measured-fgsm"
    suite.save(place)
    assert folders.find(SMOKE, "measured-fgsm") is None  # neither study says that it is finished
    steps = tmp_path / "kuk" / "steps" / "lenet5"
    steps.mkdir(parents=True)
    (steps / "measured-fgsm.json").write_text("{}")
    assert folders.find(SMOKE, "measured-fgsm") is None  # dropout was not chosen there, so the model may be another
    (steps / "dropout.json").write_text("{}")
    assert folders.find(SMOKE, "measured-fgsm") == place
    own = tmp_path / "out" / "suites" / "lenet5" / "measured-fgsm"
    suite.save(own)
    results.save(SuiteRecord(rows=3, seconds=2.0), own.with_name("measured-fgsm.json"))
    assert folders.find(SMOKE, "measured-fgsm") == own
    assert folders.seconds(SMOKE) == 2.0


def test_searches_stop_when_there_are_enough_cases_or_too_few_come(tmp_path: Path) -> None:
    folders = SuiteFolders(tmp_path)
    counts = {"LL": [(1, 1), (1, 0), (1, 1), (1, 1)], "HH": [(0, 0), (0, 0), (1, 1), (1, 1)]}
    plan = replace(SMOKE, seeds=8, runs=1)
    assert len(plan.parts(0)) == 4
    for pattern, chunks in counts.items():
        for (of, chunk, _, _), reached in zip(plan.parts(0), chunks, strict=True):
            seeds = Samples(torch.rand(2, 1, 4, 4, generator=spawn(of, chunk)), torch.arange(2))
            columns = {"reached": list(map(float, reached)), "vro_search": [0.1, 0.9]}
            options = {"seeds": seeds, "origin": torch.arange(2), "prediction": torch.zeros(2), "method": "any"}
            place = tmp_path / "suites" / "lenet5" / search_name(pattern, of, "", chunk)
            Suite.of(seeds.x, **options, columns=columns).save(place)
            results.save(SuiteRecord(rows=2, seconds=0.0), place.with_name(f"{place.name}.json"))

    def taken(plan: DefencePlan) -> list[int]:
        return [len(list(suites.wanted(plan, pattern, 0, folders))) for pattern in counts]

    assert taken(plan) == [4, 4]
    assert taken(replace(plan, quota=3)) == [2, 4]
    assert taken(replace(plan, quota=3, limits={"HH": 4})) == [2, 2]
    assert taken(replace(plan, limits={"HH": 6})) == [4, 3]
    assert len(suites.uncommon_of(replace(plan, quota=3), "LL", 0, folders)) == 3
    assert suites.uncommon_of(plan, "HH", 0, folders)["vro"].tolist() == pytest.approx([0.1, 0.9] * 2)


# The study


def test_options_that_do_not_belong_are_rejected(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["study", "kuk", "--kuk", str(tmp_path), "--out", str(tmp_path / "a")])
    assert done.exit_code == 2
    assert "--kuk is an option of defences, enhance alone, not of kuk" in " ".join(done.output.split())


@pytest.mark.slow
def test_it_runs_goes_on_and_takes_suites_that_are_there(tmp_path: Path) -> None:
    out, more = tmp_path / "out", ["--scale", "smoke", "--workers", "1"]
    done = CliRunner().invoke(app, ["study", "defences", *more, "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = (out / "defences.md").read_text()
    for words in ("What held", "Tables 6 and 7", "By kind and pattern", "What was run", "Run it again"):
        assert words in page
    folders = SuiteFolders(out)
    given = suites.prepared(SMOKE, None, folders)
    known = prepare(SMOKE.subject, None, out)
    assert torch.equal(given.inputs.ids, known.inputs.ids)
    assert torch.equal(given.seeds.ids[: len(known.seeds)], known.seeds.ids)
    for run in range(SMOKE.runs):
        shown = suites.attacks_of(SMOKE, given, SMOKE.shown(run), run + 1, folders)
        common, uncommon = suites.common_of(SMOKE, given, run, folders), suites.all_uncommon_of(SMOKE, run, folders)
        judged = torch.cat([common.seed, uncommon.seed])
        assert not bool(torch.isin(shown.seed, judged).any())
        assert not bool(torch.isin(suites.benign_of(SMOKE, given, run).ids, torch.cat([judged, shown.seed])).any())
        assert int((common.prediction != common.label).sum()) * 2 == len(common)
        assert bool((torch.as_tensor(uncommon["reached"]) == 1).all())
        noise = suites.noise_of(SMOKE, given, run, folders)
        assert len(noise) == SMOKE.draws * SMOKE.seeds * len(PATTERNS)
        assert set(noise.seed.tolist()) >= set(uncommon.seed.tolist())
        assert 0.2 < float(noise.distances("linf").min()) <= float(noise.distances("linf").max()) <= 0.3 + 1e-6
    place = out / "defences" / "lenet5"
    lost = place / f"{run_step(MUTATION, 1)}.json"
    before, times = (
        results.load(lost, DefenceOutcome),
        {p: p.stat().st_mtime_ns for p in place.glob("*.json") if p != lost},
    )
    lost.unlink()
    defences.run_study(out, data=None, scale="smoke", workers=1, console=Console(quiet=True))
    again = results.load(lost, DefenceOutcome)
    assert again.tables == before.tables
    assert set(before.tables) >= {COMMON, NOISE}
    assert {p: p.stat().st_mtime_ns for p in times} == times
    other = tmp_path / "other"
    done = CliRunner().invoke(app, ["study", "defences", *more, "--out", str(other), "--kuk", str(out)])
    assert done.exit_code == 0, done.output
    assert not (other / "suites").exists()
    assert not (other / "steps").exists()
    assert results.load(other / "defences" / "lenet5" / lost.name, DefenceOutcome).tables == before.tables
