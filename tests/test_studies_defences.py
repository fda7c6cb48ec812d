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
from operant.defend.evaluate import interval
from operant.studies import defences
from operant.studies.defences import paper, suites, tables
from operant.studies.defences.found import Found, average
from operant.studies.defences.judging import COMMON, CONFIRMED, UNCOMMON, Tried, tried_name
from operant.studies.defences.page import write_page
from operant.studies.defences.settings import CLASSIFIER, MUTATION, SQUEEZING, TABLE_6, TABLE_7, Plan, plans
from operant.studies.defences.suites import Home, Made
from operant.studies.kuk.found import search_name
from operant.studies.kuk.models import ready
from operant.studies.kuk.paper import ATTACKS
from operant.studies.kuk.settings import PATTERNS, subjects

SMALL = {plan.name: plan for plan in plans("small")}
SMOKE = plans("smoke")[0]


# Plans


def test_every_cell_of_both_tables_is_tried_and_known() -> None:
    assert list(SMALL) == ["lenet5", "resnet20", "nin", "mobilenet"]
    for name, plan in SMALL.items():
        assert plan.defences == (TABLE_7 if name == "mobilenet" else TABLE_6)
        assert set(paper.TABLES[name]) == set(plan.defences)
        assert plan.runs == (1 if name == "mobilenet" else 3)
        assert plan.runs * plan.seeds * len(PATTERNS) >= 150  # so that a hundred can be reached


@pytest.mark.parametrize("plan", [*SMALL.values(), SMOKE], ids=lambda plan: plan.title)
def test_searches_begin_where_those_of_the_kuk_study_do(plan: Plan) -> None:
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
def test_defences_are_judged_on_attacks_that_none_was_shown(plan: Plan) -> None:
    for run in range(plan.runs):
        assert set(plan.shown(run)) | set(plan.judged(run)) == set(ATTACKS)
        assert not set(plan.shown(run)) & set(plan.judged(run))
        assert len(plan.judged(run)) >= 2
    assert bool(plan.shown(0)) == (CLASSIFIER in plan.defences)
    learned = {method for run in range(plan.runs) for method in plan.shown(run)}
    assert learned == (set(ATTACKS) if plan.shown(0) else set())


# Counts, made up


def told(defence: str, counts: dict[tuple[str, str], tuple[int, int]]) -> DefenceTable:
    rows = [
        Success(defence=defence, kind=kind, pattern=pattern, k=k, n=n, seeds=n, lower=0.0, upper=1.0)
        for (kind, pattern), (k, n) in counts.items()
    ]
    return DefenceTable(rows=tuple(rows), detectors=(), confidence=0.95)


def tried(defence: str, common: tuple[int, int], confirmed: tuple[int, int], other: tuple[int, int]) -> Tried:
    def parts(all_: tuple[int, int]) -> DefenceTable:
        return told(defence, {("all", "all"): all_, ("adversarial", "HL"): all_})

    none = other[1] == 0
    return Tried(
        defence=defence, common=parts(common), confirmed=parts(confirmed), unconfirmed=None if none else parts(other),
        note="", seconds=60.0,
    )  # fmt: skip


def written(home: Home, plan: Plan, falls: dict[str, list[float]]) -> Found:
    """A model whose defences stop 190 of 200 common cases, and of uncommon ones a share that is smaller by so much."""
    for defence, each in falls.items():
        for run, fall in enumerate(each):
            k = round(200 * (0.95 - fall))
            place = home.out / "defences" / plan.name / f"{tried_name(defence, run)}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            results.save(tried(defence, (190, 200), (k // 2, 100), (k - k // 2, 100)), place)
    return Found(plan, home)


def test_counts_are_pooled_over_confirmed_and_other_cases() -> None:
    one = tried(MUTATION, (8, 10), (1, 4), (3, 6))
    assert (one.count(COMMON), one.count(UNCOMMON), one.count(CONFIRMED)) == ((8, 10), (4, 10), (1, 4))
    assert one.count(UNCOMMON, "adversarial", "HL") == (4, 10)
    assert one.count(UNCOMMON, "benign", "LH") == (0, 0)
    assert tried(MUTATION, (8, 10), (1, 4), (0, 0)).count(UNCOMMON) == (1, 4)


def test_falls_are_means_over_runs_and_of_one_run_newcombes(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lenet = written(home, SMALL["lenet5"], {d: [0.5, 0.52, 0.54] for d in TABLE_6})
    fall = lenet.fall(MUTATION)
    assert (fall.value, fall.n) == (pytest.approx(0.52), 3)
    assert lenet.size(UNCOMMON) == 600
    assert lenet.seconds == 15 * 60
    mobile = written(home, SMALL["mobilenet"], {d: [0.3] for d in TABLE_7})
    fall = mobile.fall(MUTATION)
    (l1, u1), (l2, u2) = (interval(k, 200, 0.95) for k in (190, 130))
    assert fall.value == pytest.approx(0.3)
    assert fall.lower == pytest.approx(0.3 - math.hypot(0.95 - l1, u2 - 0.65))
    assert fall.upper == pytest.approx(0.3 + math.hypot(u1 - 0.95, 0.65 - l2))
    exact = clopper_pearson_interval(130, 200, confidence=0.95)
    assert mobile.success(MUTATION, UNCOMMON).lower == pytest.approx(exact.lower)


def test_the_average_is_over_all_cells(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lenet = written(home, SMALL["lenet5"], {d: [0.5, 0.52, 0.54] for d in TABLE_6})
    mobile = written(home, SMALL["mobilenet"], {d: [0.3] for d in TABLE_7})
    assert average([]) is None
    alone, both = average([lenet]), average([lenet, mobile])
    assert (alone.value, alone.lower) == pytest.approx((0.52, lenet.fall(MUTATION).lower))  # its cells are alike
    assert both.value == pytest.approx((5 * 0.52 + 3 * 0.3) / 8)
    assert both.lower < both.value < both.upper
    half = math.hypot(5 * (alone.value - alone.lower) / 8, 3 * (0.3 - mobile.fall(MUTATION).lower) / 8)
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
    strong = rows_of(tables.claims([written(Home(tmp_path / "a"), SMALL["lenet5"], much)]))
    assert strong["success is lower on uncommon data"] == "held"
    assert strong["… by 35 points on average"] == "held"
    assert strong["… and by up to 79"] == "not held"
    assert strong["binary classifier and mutation-based detection lose more than the others"] == "held"
    assert strong["feature squeezing stops less"] == "held"
    little = {d: [-0.03, -0.035, -0.04] if d == SQUEEZING else [0.1, 0.05, -0.04] for d in TABLE_6}
    weak = rows_of(tables.claims([written(Home(tmp_path / "b"), SMALL["lenet5"], little)]))
    assert weak["success is lower on uncommon data"] == "not decided"
    assert weak["… by 35 points on average"] == "not held"
    assert weak["mutation-based stops less"] == "not decided"
    assert weak["feature squeezing stops less"] == "not held"
    assert len(strong) == len(weak) == 4 + len(TABLE_6)


def test_a_page_says_what_is_missing_and_prints_no_nonsense(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lenet = written(home, SMALL["lenet5"], {d: [0.5, 0.52, 0.54] for d in TABLE_6})
    none = {d: [0.3] for d in TABLE_7}
    mobile = written(home, replace(SMALL["mobilenet"], subject=replace(SMALL["mobilenet"].subject, name="other")), none)
    text = write_page(
        tmp_path, [lenet, mobile], ["NIN, CIFAR-10, is left out, for want of weights"], scale="small"
    ).read_text()
    assert "for want of weights" in text
    assert "<svg" in (tmp_path / "defences.svg").read_text()
    for word in ("nan", "None", "inf]", "[-inf"):
        assert word not in text
    assert "3 runs, 600 common and 600 uncommon cases" in text


# Where suites come from


def test_suites_are_taken_from_the_kuk_study_only_if_it_is_the_same(tmp_path: Path) -> None:
    out, there = tmp_path / "out", tmp_path / "kuk"
    with pytest.raises(ValueError, match="holds no study whose suites could be used"):
        suites.check_home(Home(out, there), "smoke")
    (there / "steps" / "lenet5").mkdir(parents=True)
    results.write_atomically(there / "study.json", json.dumps({"subjects": str(subjects("smoke"))}).encode())
    suites.check_home(Home(out, there), "smoke")
    with pytest.raises(ValueError, match="another scale or of other settings"):
        suites.check_home(Home(out, there), "small")


def test_a_suite_counts_once_it_is_whole(tmp_path: Path) -> None:
    home = Home(tmp_path / "out", tmp_path / "kuk")
    seeds = Samples(torch.rand(3, 1, 4, 4, generator=spawn(0)), torch.arange(3))
    suite = Suite.of(seeds.x, seeds=seeds, origin=torch.arange(3), prediction=torch.zeros(3), method="fgsm")
    place = tmp_path / "kuk" / "suites" / "lenet5" / "measured-fgsm"
    suite.save(place)
    assert home.kept(SMOKE, "measured-fgsm") is None  # neither study says that it is finished
    steps = tmp_path / "kuk" / "steps" / "lenet5"
    steps.mkdir(parents=True)
    (steps / "measured-fgsm.json").write_text("{}")
    assert home.kept(SMOKE, "measured-fgsm") is None  # dropout was not chosen there, so the model may be another
    (steps / "dropout.json").write_text("{}")
    assert home.kept(SMOKE, "measured-fgsm") == place
    own = tmp_path / "out" / "suites" / "lenet5" / "measured-fgsm"
    suite.save(own)
    results.save(Made(rows=3, seconds=2.0), own.with_name("measured-fgsm.json"))
    assert home.kept(SMOKE, "measured-fgsm") == own
    assert home.seconds(SMOKE) == 2.0


def test_searches_stop_when_there_are_enough_cases_or_too_few_come(tmp_path: Path) -> None:
    home = Home(tmp_path)
    counts = {"LL": [(1, 1), (1, 0), (1, 1), (1, 1)], "HH": [(0, 0), (0, 0), (1, 1), (1, 1)]}
    plan = replace(SMOKE, seeds=8, runs=1)
    assert len(plan.parts(0)) == 4
    for pattern, chunks in counts.items():
        for (of, chunk, _, _), reached in zip(plan.parts(0), chunks, strict=True):
            seeds = Samples(torch.rand(2, 1, 4, 4, generator=spawn(of, chunk)), torch.arange(2))
            told = {"reached": list(map(float, reached)), "vro_search": [0.1, 0.9]}
            options = {"seeds": seeds, "origin": torch.arange(2), "prediction": torch.zeros(2), "method": "any"}
            place = tmp_path / "suites" / "lenet5" / search_name(pattern, of, "", chunk)
            Suite.of(seeds.x, **options, columns=told).save(place)
            results.save(Made(rows=2, seconds=0.0), place.with_name(f"{place.name}.json"))

    def taken(plan: Plan) -> list[int]:
        return [len(list(suites.wanted(plan, pattern, 0, home))) for pattern in counts]

    assert taken(plan) == [4, 4]
    assert taken(replace(plan, quota=3)) == [2, 4]
    assert taken(replace(plan, quota=3, patience=4)) == [2, 2]
    assert taken(replace(plan, patience=6)) == [4, 4]  # two of six is a tenth and more
    assert len(suites.uncommon_of(replace(plan, quota=3), "LL", 0, home)) == 3
    assert suites.uncommon_of(plan, "HH", 0, home)["vro"].tolist() == pytest.approx([0.1, 0.9] * 2)


# The study


def test_options_that_do_not_belong_are_refused(tmp_path: Path) -> None:
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
    home = Home(out)
    given = suites.given_of(SMOKE, None, home)
    known = ready(SMOKE.subject, None, out)
    assert torch.equal(given.inputs.ids, known.inputs.ids)
    assert torch.equal(given.seeds.ids[: len(known.seeds)], known.seeds.ids)
    for run in range(SMOKE.runs):
        shown = suites.attacks_of(SMOKE, given, SMOKE.shown(run), run + 1, home)
        common, uncommon = suites.common_of(SMOKE, given, run, home), suites.all_uncommon_of(SMOKE, run, home)
        judged = torch.cat([common.seed, uncommon.seed])
        assert not bool(torch.isin(shown.seed, judged).any())
        assert not bool(torch.isin(suites.benign_of(SMOKE, given, run).ids, torch.cat([judged, shown.seed])).any())
        assert int((common.prediction != common.label).sum()) * 2 == len(common)
        assert bool((torch.as_tensor(uncommon["reached"]) == 1).all())
    place = out / "defences" / "lenet5"
    lost = place / f"{tried_name(MUTATION, 1)}.json"
    before, times = results.load(lost, Tried), {p: p.stat().st_mtime_ns for p in place.glob("*.json") if p != lost}
    lost.unlink()
    defences.run_study(out, data=None, scale="smoke", workers=1, console=Console(quiet=True))
    again = results.load(lost, Tried)
    assert (again.common, again.confirmed, again.unconfirmed) == (before.common, before.confirmed, before.unconfirmed)
    assert {p: p.stat().st_mtime_ns for p in times} == times
    other = tmp_path / "other"
    done = CliRunner().invoke(app, ["study", "defences", *more, "--out", str(other), "--kuk", str(out)])
    assert done.exit_code == 0, done.output
    assert not (other / "suites").exists()
    assert not (other / "steps").exists()
    assert results.load(other / "defences" / "lenet5" / lost.name, Tried).common == before.common
