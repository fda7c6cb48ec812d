"""Laws of a campaign's risk map: what cases it draws, that they are kept, and what seeds, triage and the report use."""

import csv
import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from operant import Classifier, Samples, Suite, labels_of, load_digits, results, spawn
from operant.assess import assess_reliability, failure_rate, regressions
from operant.campaign import Campaign, CampaignResult, judging
from operant.campaign import field as field_module
from operant.campaign.choosers import risk_score
from operant.campaign.observers.risk import MIN_LABELS, RiskOfField, RiskOfRound, describe_lift
from operant.campaign.observers.risk_listing import list_risks
from operant.campaign.observers.risk_regions import RISKIEST, Rated, regions_of
from operant.campaign.progress import permanent_lines
from operant.campaign.records import SeedRows
from operant.campaign.reserving import reserve
from operant.campaign.risk import (
    CONDITIONS_UNLIKE_FIELD,
    SUITES,
    CampaignRisk,
    ClassShares,
    spread_seeds,
    teaching_cases,
)
from operant.cli import app
from operant.cli.assess import _print_weights, _read_risk
from operant.conditions import Recipe, apply, normal, uniform
from operant.execution import RunFolder, pool
from operant.execution.events import Event, EventHandler, ignore
from operant.execution.run_folder import finished
from operant.formatting import percent
from operant.generate import GradientMove, RecipeDraws, unguided
from operant.measure import judge as judge_module
from operant.model import Finding
from operant.networks import fit, initialise, save_weights
from operant.profile import RiskMap, fit_profile, fit_risk
from operant.profile._risk_findings import LEVEL_OF_WIDER
from operant.report import gather, write_report
from operant.report.markdown import markdown
from operant.report.page import render_page
from operant.report.risks import risks_csv
from operant.retrain import OperationalFinetune
from operant.seeds import margin_risk

LEVEL = (CONDITIONS_UNLIKE_FIELD, LEVEL_OF_WIDER)
RECIPE = Recipe(severities={"rotation": normal(15), "gaussian_noise": uniform(0, 0.4)})
digits = cache(load_digits)
TINY = Campaign(
    requirement=0.001,
    moves={"gradient": partial(GradientMove, radius=1.0, steps=2)},
    rounds=1,
    labels=150,
    max_drop=0.1,
    seeds_per_round=20,
    cases_per_round=10,
    chunk=20,
    dimensions=4,
    draws=300,
    judge_draws=0,
    retrainer=OperationalFinetune(epochs=1, steps=5, progress=False),
    observers=(RiskOfField(),),
)


def train() -> Samples:
    return digits().train[:500]


def clean() -> Samples:
    return digits().train[500:650]


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


@cache
def model() -> Classifier:
    start = initialise(network, generator=spawn(100, "weights"))
    return Classifier(fit(start, train(), epochs=25, learning_rate=4e-3, generator=spawn(100), progress=False).module)


@cache
def field() -> Samples:
    g, source = spawn(100, "field"), digits().test
    rows = torch.randint(len(source), (700,), generator=g)
    return Samples(apply(source.x[rows], RECIPE.draw(700, generator=g)), source.labels[rows])


def run(
    folder: Path, *, recipe: Recipe | None = RECIPE, on_event: EventHandler = ignore, **changes: Any
) -> CampaignResult:
    return replace(TINY, **changes)(
        model(),
        train=train(),
        clean=clean(),
        field=Samples(field().x, ids=field().ids),
        labeller=labels_of(field()),
        folder=folder,
        recipe=recipe,
        on_event=on_event,
    )


@pytest.fixture(scope="module", autouse=True)
def _fitted_once() -> Iterator[None]:
    """All these campaigns have the same field."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field_module, "fit_naturalness", _remembering(field_module.fit_naturalness))
        yield


def _remembering(work: Any) -> Any:
    known: list[Any] = []

    def remembered(*arguments: Any, **options: Any) -> Any:
        if not known:
            known.append(work(*arguments, **options))
        return known[0]

    return remembered


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CampaignResult]:
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder)


def digest(folder: Path) -> str:
    with RunFolder(folder) as opened:
        return opened.digest()


def record_of(folder: Path) -> RiskOfRound:
    found: RiskOfRound = results.load(folder / "round-001" / "risk.json", RiskOfRound)
    return found


def map_of(folder: Path, **options: Any) -> RiskMap:
    taught = teaching_cases(folder)
    return fit_risk(model(), taught.cases, wider=taught.wider, **options)


# Cases


def test_no_seed_teaches_and_judges_and_nothing_searched_shares_a_seed_with_either(done) -> None:
    folder, result = done
    searched = results.load(folder / "round-001" / "seeds.json", SeedRows).samples(train())
    teaching, wider, judging = suites = [Suite.open(folder / "draws" / name) for name in SUITES]
    assert [len(suite) for suite in suites] == [300, 150, 100]
    for suite in (teaching, wider):
        of_clean = torch.isin(suite.seed, clean().ids)
        assert bool((of_clean | torch.isin(suite.seed, train().ids)).all())
        assert 0.2 < float(of_clean.double().mean()) < 0.6  # inputs that the model has not learned from
        assert not bool(torch.isin(suite.seed, judging.seed).any())
    assert bool(torch.isin(judging.seed, clean().ids).all())
    for suite in suites:  # nothing is selected: passes as well as failures
        assert not bool(torch.isin(suite.seed, torch.cat([searched.ids, result.suite.seed])).any())
        assert 0 < int((suite.prediction != suite.label).sum()) < len(suite)
    assert not list(folder.glob("draws/*-chunks"))


@settings(max_examples=5, deadline=None)
@given(scenes=st.integers(40, 80))
def test_cases_of_one_group_of_seeds_stay_together_in_the_map(scenes: int) -> None:
    inputs = replace(train(), groups=tuple(f"scene {row % scenes}" for row in range(len(train()))))
    held = replace(clean(), groups=tuple(f"clean scene {row % 20}" for row in range(len(clean()))))
    parts, state = reserve(inputs, judge_draws=0, draws=150), cast(Any, None)
    risk = CampaignRisk(RECIPE, parts, held, state, draws=150, chunk=20)
    seeds = risk.seeds.teaching
    cases = RecipeDraws(recipe=RECIPE)(model(), seeds, generator=spawn(scenes))
    risk._suites = {"teaching": cases, "wider": cases[:50]}
    known: Any = SimpleNamespace(class_shares=lambda inputs: torch.full((10,), 0.1, dtype=torch.float64))
    group = risk.map_for(model(), known).cases.group
    unit = seeds.units[seeds.rows_of(torch.cat([cases.seed, cases.seed[:50]]))]
    pairs = torch.stack([group, unit.unique(return_inverse=True)[1]], 1).unique(dim=0)
    assert len(pairs) == len(group.unique()) == len(unit.unique())


def test_cases_of_wider_conditions_are_under_more_conditions_and_fail_more_often(done) -> None:
    teaching, wider = (Suite.open(done[0] / "draws" / name) for name in SUITES[:2])
    assert set(teaching.columns) < set(wider.columns)
    assert bool((wider["blur"] > 0).any())
    rates = [float((suite.prediction != suite.label).double().mean()) for suite in (teaching, wider)]
    assert rates[1] > rates[0]


def test_a_folder_without_wider_cases_and_a_plain_suite_teach_as_well(done, tmp_path: Path) -> None:
    whole = teaching_cases(done[0])
    shutil.copytree(done[0], tmp_path / "earlier")
    shutil.rmtree(tmp_path / "earlier" / "draws" / "wider")
    (tmp_path / "earlier" / "draws" / "shares.json").unlink()
    earlier, plain = teaching_cases(tmp_path / "earlier"), teaching_cases(done[0] / "draws" / "teaching")
    assert whole.wider is not None
    assert earlier.wider is plain.wider is earlier.shares is plain.shares is None
    assert earlier.digest() == plain.digest() == whole.cases.digest() != whole.digest()
    for folder, wider in ((done[0], 150), (tmp_path / "earlier", 0)):
        found, (mark,) = _read_risk(model(), folder)  # of `operant assess --risk`
        assert isinstance(found, RiskMap)
        assert found.cases.wider == wider
        assert (mark == _read_risk(model(), done[0])[1][0]) == bool(wider)


def test_an_assessment_weights_the_cases_of_a_campaign_as_the_campaign_does(done, tmp_path: Path) -> None:
    taught, (risk, mark) = teaching_cases(done[0]), _read_risk(model(), done[0])
    assert taught.shares == pytest.approx(_normalised(_shares(done[0])))
    assert isinstance(risk, RiskMap)
    assert torch.equal(risk.cases.mass, map_of(done[0], priors=taught.shares).cases.mass)
    shutil.copytree(done[0], tmp_path / "moved")
    results.save(ClassShares(values=taught.shares[::-1]), tmp_path / "moved" / "draws" / "shares.json")
    other, (another,) = _read_risk(model(), tmp_path / "moved")
    assert another != mark[0]  # another map draws other inputs to label
    assert not torch.equal(other.cases.mass, risk.cases.mass)


def test_the_class_shares_of_the_newest_field_are_kept(tmp_path: Path) -> None:
    shares = torch.arange(10, dtype=torch.float64) / 45
    with RunFolder(tmp_path, signature={}) as folder:
        state: Any = SimpleNamespace(folder=folder)
        risk = CampaignRisk(RECIPE, reserve(train(), judge_draws=0, draws=30), clean(), state, draws=30, chunk=20)
        for now in (shares, shares, shares.flip(0)):
            risk._keep_shares(cast(Any, SimpleNamespace(class_shares=lambda inputs, now=now: now)))
            assert results.load(tmp_path / "draws" / "shares.json", ClassShares).values == tuple(now.tolist())
            assert finished(tmp_path / "draws" / "shares.json")


def test_folders_without_cases_are_refused_with_the_one_to_give(done, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the folder .*nosuch does not exist"):
        teaching_cases(tmp_path / "nosuch")
    with pytest.raises(ValueError, match=f"give that folder, {done[0]}, instead"):
        teaching_cases(done[0] / "draws")
    with pytest.raises(ValueError, match="is not a suite"):
        teaching_cases(tmp_path)


def test_an_assessment_says_which_weights_it_assesses(done, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    final, others = done[0] / "model.safetensors", tmp_path / "others.safetensors"
    save_weights(initialise(network, generator=spawn(1)), others)
    shutil.copy(final, tmp_path / "copy.safetensors")
    for file, told in ((others, True), (None, True), (final, False), (tmp_path / "copy.safetensors", False)):
        _print_weights(file, None, done[0])
        said = "".join(capsys.readouterr().out.split())
        assert ("" if file is None else str(file)) in said
        assert (f"--weights{final}" in said) == told
    _print_weights(others, None, tmp_path)
    assert "--weights" not in capsys.readouterr().out


def test_too_few_training_inputs_are_named_in_terminal_and_report(tmp_path: Path) -> None:
    events: list[Event] = []
    run(tmp_path, draws=600, on_event=events.append)
    lines = [line for event in events for line in permanent_lines(event)]
    assert any("the 500 training inputs are too few" in line for line in lines)
    assert any("the map was fitted to 600 cases" in line for line in lines)
    assert {"risk map not separate", "few cases"} <= {finding.name for finding in record_of(tmp_path).findings}
    page = render_page(gather(tmp_path, observers=TINY.observers), TINY.observers)
    assert "The 500 training inputs are too few" in page
    seeds = Suite.open(tmp_path / "draws" / "teaching").seed
    assert len(seeds.unique()) > 300


def test_cases_that_hardly_fail_leave_the_margin_and_terminal_and_report_say_so(tmp_path: Path) -> None:
    events: list[Event] = []
    gentle = Recipe(severities={"gaussian_noise": uniform(0, 1e-3)})
    run(tmp_path, recipe=gentle, draws=15, on_event=events.append)
    said = "inputs are ranked by the margin alone"
    assert results.load(tmp_path / "round-001" / "seeds.json", SeedRows).by == "margin"
    assert any(said in line for event in events for line in permanent_lines(event))
    evidence = gather(tmp_path, observers=TINY.observers)
    assert said in render_page(evidence, TINY.observers)
    assert "The cases taught no more than the margin, by which inputs are ranked here" in markdown(evidence)


def test_where_only_wider_cases_fail_inputs_are_ranked_and_the_level_is_doubted(tmp_path: Path) -> None:
    events: list[Event] = []
    gentle = Recipe(severities={"gaussian_noise": uniform(0, 1e-3)})
    run(tmp_path, recipe=gentle, draws=75, on_event=events.append)
    said = "the ranking holds, their level does not"
    assert results.load(tmp_path / "round-001" / "seeds.json", SeedRows).by == "risk map"
    assert any(said in line for event in events for line in permanent_lines(event))
    evidence = gather(tmp_path, observers=TINY.observers)
    for text in (render_page(evidence, TINY.observers), markdown(evidence)):
        assert text.count(said) == 1


# Conditions that a judge rejects

DRAWS = partial(unguided, RecipeDraws(recipe=RECIPE, per_seed=2))
REJECTED = "their level and the expected failures are not to be believed"


@pytest.fixture
def rejecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of the first move rejects its draws, those of others accept them."""
    real, fitted = judging.fit_judge, []

    def fit_judge(*given: Any, **options: Any) -> Any:
        fitted.append(real(*given, **options) if not fitted else fitted[0])
        return replace(fitted[0], accepted=float(len(fitted) > 1))

    monkeypatch.setattr(judge_module, "NETWORK_STEPS", 10)
    monkeypatch.setattr(judging, "fit_judge", fit_judge)


@pytest.mark.usefixtures("rejecting")
def test_a_rejected_recipe_ranks_seeds_and_cases_but_is_not_searched_with(tmp_path: Path) -> None:
    result = run(tmp_path, moves={"conditions": DRAWS, **TINY.moves}, judge_draws=120)
    last = result.rounds[-1]
    assert [(test.move, test.searched) for test in last.tests] == [("conditions", False), ("gradient", True)]
    assert list(last.moves) == ["gradient"]
    assert results.load(tmp_path / "round-001" / "seeds.json", SeedRows).by == "risk map"
    assert result.suite is not None
    again = map_of(tmp_path, priors=_shares(tmp_path))(model(), result.suite.x)
    assert torch.allclose(Suite.open(tmp_path / "cases")["risk"], again, atol=1e-6)
    assert CONDITIONS_UNLIKE_FIELD in {finding.name for finding in record_of(tmp_path).findings}


@pytest.mark.usefixtures("rejecting")
def test_where_nothing_is_searched_risks_are_shown_and_their_level_is_doubted(tmp_path: Path) -> None:
    events: list[Event] = []
    result = run(tmp_path, moves={"conditions": DRAWS}, judge_draws=120, on_event=events.append)
    assert result.rounds[-1].nothing_to_search
    assert result.suite is None
    assert sum(REJECTED in line for event in events for line in permanent_lines(event)) == 1
    assert len(record_of(tmp_path).riskiest) == 12
    evidence = gather(tmp_path, observers=TINY.observers)
    for text in (render_page(evidence, TINY.observers), markdown(evidence)):
        assert text.count(REJECTED) == 1
        assert "Label a hundred random field inputs" in text
    before = digest(tmp_path)
    run(tmp_path, moves={"conditions": DRAWS}, judge_draws=120)  # resumed: no record for the round before the cases
    assert digest(tmp_path) == before


@pytest.mark.slow  # two processes
def test_workers_and_interruptions_change_no_bit(done, tmp_path: Path) -> None:
    folder, _ = done
    shutil.copytree(folder, tmp_path / "again")
    for part in ("round-001", "draws/wider", "draws/judging"):
        shutil.rmtree(tmp_path / "again" / part)
    for name in ("wider", "judging"):
        (tmp_path / "again" / "draws" / f".{name}.seal").unlink()
    run(tmp_path / "again", engine=pool(2))
    assert digest(tmp_path / "again") == digest(folder)


@pytest.mark.parametrize(("n", "classes"), [(1, 3), (50, 3), (400, 5)])
def test_seeds_have_every_class_and_repeat_only_when_all_are_used(n: int, classes: int) -> None:
    inputs = Samples(torch.rand(60, 2, generator=spawn(0)), torch.arange(60) % 3)
    shares = torch.tensor([1.0, *[0.0] * (classes - 1)])
    chosen = spread_seeds(inputs, shares, n, generator=spawn(1))
    counts, uses = chosen.labels.bincount(minlength=3), chosen.ids.unique(return_counts=True)[1]
    assert len(chosen) == n
    if n >= 50:
        assert counts[0] > 2 * counts[1]
        assert abs(int(counts[1] - counts[2])) <= 1
        assert counts[1] > 0
    for c in range(3):
        own = chosen.ids[chosen.labels == c].unique(return_counts=True)[1]
        assert len(own) == min(20, int(counts[c]))
        assert own.tolist() == [] or int(own.max() - own.min()) <= 1
    assert int(uses.sum()) == n


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(1, 30), more=st.integers(0, 50))
def test_every_class_is_drawn_by_twice_as_many_cases_as_classes(seed: int, classes: int, more: int) -> None:
    inputs = Samples(torch.rand(3 * classes, 2, generator=spawn(0)), torch.arange(3 * classes) % classes)
    shares = torch.rand(classes, generator=spawn(seed), dtype=torch.float64) ** 20
    chosen = spread_seeds(inputs, shares / shares.sum(), 2 * classes + more, generator=spawn(seed))
    assert set(chosen.labels.tolist()) == set(range(classes))


def test_without_conditions_or_draws_there_is_no_map(tmp_path: Path) -> None:
    for name, changes in (("none", {"recipe": None}), ("off", {"draws": 0})):
        run(tmp_path / name, **changes)
        assert not (tmp_path / name / "draws").exists()
        assert not (tmp_path / name / "round-001" / "risk.json").exists()
        assert results.load(tmp_path / name / "round-001" / "seeds.json", SeedRows).by == "margin"
        with pytest.raises(ValueError, match="has no cases for a risk map"):
            teaching_cases(tmp_path / name)


# Uses


def test_seeds_are_drawn_by_the_map_where_it_has_learned(done) -> None:
    folder, _ = done
    assert results.load(folder / "round-001" / "seeds.json", SeedRows).by == "risk map"
    taught = map_of(folder)
    untaught = fit_risk(model(), teaching_cases(folder).cases[:5])
    assert taught.learned
    assert not untaught.learned
    assert risk_score(taught) is taught
    assert risk_score(untaught) is risk_score(None) is margin_risk


def test_cases_carry_their_risk_for_triage(done) -> None:
    folder, result = done
    assert result.suite is not None
    risk = Suite.open(folder / "cases")["risk"]
    again = map_of(folder, priors=_shares(folder))(model(), result.suite.x)
    assert torch.allclose(risk, again, atol=1e-6)


def _shares(folder: Path) -> list[float]:
    from operant.profile import load_profile

    mass = load_profile(folder / "round-000" / "profile.json").weights(train())
    return torch.bincount(train().labels, mass, minlength=10).tolist()


def test_models_are_judged_by_the_cases_and_changes_are_counted(done) -> None:
    folder, result = done
    judging, record = Suite.open(folder / "draws" / "judging"), record_of(folder)
    assert record.before == failure_rate(model(), judging, priors=_normalised(_shares(folder)))
    assert record.after == failure_rate(result.model, judging, priors=_normalised(_shares(folder)))
    changed = regressions(result.model, judging)
    assert (record.broken, record.fixed) == (len(changed.broken), len(changed.fixed))


def _normalised(shares: list[float]) -> list[float]:
    total = torch.tensor(shares, dtype=torch.float64)
    return (total / total.sum()).tolist()


def test_the_map_is_a_score_for_the_proof(done) -> None:
    risk, data = map_of(done[0]), field()
    parts = data.split(profile=0.4, assessment=0.6)
    found = assess_reliability(
        model(),
        fit_profile(parts["profile"], generator=spawn(0)),
        labels_of(data),
        pool=Samples(parts["assessment"].x, ids=parts["assessment"].ids),
        labels=120,
        risk=risk,
        generator=spawn(1),
    )
    truth = 1 - model().accuracy(data)
    assert found.labels == 120
    assert 0 < found.pmi < found.claim
    assert found.claim > truth - 0.02


def test_the_report_shows_the_riskiest_inputs_and_what_labels_say(done) -> None:
    folder, _ = done
    record, evidence = record_of(folder), gather(folder, observers=TINY.observers)
    risks = [one.risk for one in record.riskiest]
    assert risks == sorted(risks, reverse=True)
    assert risks[-1] > record.expected
    assert record.rated == 700
    assert record.cases == TINY.draws  # without those of wider conditions
    section = next(s for s in evidence.sections if s.name == "risk")
    page = render_page(evidence, TINY.observers)
    assert section.summary.startswith(f"By {TINY.draws} unselected cases, without labels, ")
    assert section.summary in page.replace("\u00a0", " ").replace("&#39;", "'")
    assert page.count("<figcaption>") >= len(record.riskiest)
    assert len(section.values["rates"]) == 1
    assert section.values["lift_rows"]
    few = replace(record, lift=None, labels=MIN_LABELS - 1, failures=3)
    assert "3 of 99 labelled field inputs fail, and at least 100" in describe_lift(few)
    assert "no more than the margin" in describe_lift(replace(record, learned=False))


@settings(deadline=None, max_examples=15)
@given(names=st.sets(st.sampled_from([*LEVEL, "conditions of an earlier field", "risk map not separate"])))
def test_page_and_markdown_show_every_finding_and_doubts_of_the_level_beside_the_estimate(done, names) -> None:
    record, evidence = record_of(done[0]), gather(done[0], observers=())
    findings = tuple(Finding(name=n, problem=f"the {n} is doubted", advice=f"Mend the {n}") for n in sorted(names))
    section = RiskOfField().section({1: replace(record, findings=findings)}, rounds=(), classes=())
    assert section is not None
    evidence = replace(evidence, sections=(section,))
    for text in (render_page(evidence, TINY.observers), markdown(evidence)):
        for finding in findings:
            assert text.count(f"he {finding.name} is doubted. {finding.advice}.") == 1
    for finding in findings:
        assert (finding.advice in section.summary) == (finding.name in LEVEL)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.1, 2.0), ", which is better than the model's margin (3.2) as far as these labels tell."),
        ((-2.0, -0.1), ", which is worse than the model's margin (3.2) as far as these labels tell."),
        ((-0.1, 2.0), "; 150 labels are too few to tell whether it ranks better than the model's margin (3.2)."),
    ],
)
def test_labels_that_cannot_tell_map_and_margin_apart_are_called_too_few(done, ends, said: str) -> None:
    record = record_of(done[0])
    assert record.lift is not None
    top = replace(record.lift.at[0], margin=3.2, gain_lower=ends[0], gain_upper=ends[1])
    text = describe_lift(replace(record, learned=True, lift=replace(record.lift, inputs=150, at=(top,))))
    assert text.endswith(f"is possible){said}")


def test_the_report_lists_all_field_inputs_by_risk(done, tmp_path: Path) -> None:
    folder, result = done
    page = write_report(folder, tmp_path / "report")
    text = (tmp_path / "report" / "risks.csv").read_text()
    head, *rows = csv.reader(text.splitlines())
    assert head == ["name", "prediction", "risk"]
    assert [name for name, _, _ in rows[:3]] == [one.name for one in record_of(folder).riskiest[:3]]
    order = {name: (prediction, float(risk)) for name, prediction, risk in rows}
    assert sorted(order) == sorted(set(field().titles))
    assert [float(risk) for _, _, risk in rows] == sorted((float(risk) for _, _, risk in rows), reverse=True)
    predicted = result.model.predict(field().x).tolist()
    assert [order[name][0] for name in field().titles] == [str(p) for p in predicted]
    assert sum(float(risk) for _, _, risk in rows) / 700 == pytest.approx(record_of(folder).expected, abs=1e-4)
    assert "All 700 are listed in risks.csv, riskiest first." in plain_text(page.with_suffix(".md").read_text())
    write_report(folder, tmp_path / "again")
    assert (tmp_path / "again" / "risks.csv").read_text() == text
    said = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "report")]).output
    assert "risks.csv" in said


def plain_text(markdown: str) -> str:
    return markdown.replace("\\", "")


def test_a_listing_keeps_names_of_any_characters_and_no_cell_is_a_formula() -> None:
    names = ["a,b.png", "=1+1", "ü\n.png", "i7"]
    rated = Rated(risk=torch.tensor([0.1, 0.4, 0.2, 0.4]).double(), predicted=torch.tensor([0, 1, 2, 1]))
    listing = list_risks(names, rated)
    assert [name for name, _, _ in listing.rows()] == ["=1+1", "i7", "ü\n.png", "a,b.png"]
    rows = list(csv.reader(io.StringIO(risks_csv(listing, ("cat", "dog", "@x")))))
    assert rows[1:] == [
        ["'=1+1", "dog", "0.4"],
        ["i7", "dog", "0.4"],
        ["ü\n.png", "'@x", "0.2"],
        ["a,b.png", "cat", "0.1"],
    ]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 90), labelled=st.integers(0, 40))
def test_regions_divide_the_field_and_the_riskiest_hold_at_least_their_share(seed: int, n: int, labelled: int) -> None:
    g = spawn(seed)
    risk, predicted = torch.rand(n, generator=g).double().clamp_min(1e-4), torch.randint(4, (n,), generator=g)
    some = torch.randperm(n, generator=g)[:labelled]
    failed = torch.rand(len(some), generator=g) < risk[some]
    known = Rated(risk=risk[some], predicted=predicted[some])
    found = regions_of(Rated(risk=risk, predicted=predicted), known, failed)
    top, classes = found[: len(RISKIEST)], found[len(RISKIEST) :]
    for part in ("inputs", "expected"):
        assert sum(getattr(region, part) for region in classes) == pytest.approx(1)
    assert (sum(r.labels for r in classes), sum(r.failures for r in classes)) == (len(some), int(failed.sum()))
    assert [r.expected for r in classes] == sorted((r.expected for r in classes), reverse=True)
    for share, region in zip(RISKIEST, top, strict=True):
        assert share <= region.inputs < share + 1 / n
        assert region.expected >= region.inputs - 1e-9
        assert region.failures <= region.labels <= len(some)
    for region in found:
        assert region.expected * float(risk.mean()) == pytest.approx(region.inputs * region.risk)


def test_expected_failures_by_region_are_shown_as_an_estimate_beside_labels(done) -> None:
    folder, _ = done
    record, evidence = record_of(folder), gather(folder, observers=TINY.observers)
    first, wrong = record.regions[0], record.failures
    assert sum(r.labels for r in record.regions if r.prediction is not None) == record.labels >= 100
    assert wrong > 0
    cells = ["riskiest 5 %", percent(first.inputs, 2), percent(first.expected, 2), percent(first.risk, 2)]
    cells += [f"{first.failures} of {first.labels}", percent(first.failures / wrong, 2)]
    page = render_page(evidence, TINY.observers).replace("\u00a0", " ")
    text = markdown(evidence).replace("\u00a0", " ")
    assert "<td>".join(cells).replace("<td>", "</td><td>").replace("</td>", "</th>", 1) in page
    assert f"| {' | '.join(cells)} |" in text
    for shown in (page, text):
        assert "estimate without labels" in shown
        assert all(f"predicted {c}" in shown for c in range(10))
    none = replace(record, failures=0, regions=tuple(replace(r, labels=0, failures=0) for r in record.regions))
    section = RiskOfField().section({1: none}, rounds=(), classes=())
    assert section is not None
    assert all(row[-2:] == ("", "") for row in section.table[1:])


def test_recipes_that_do_not_fit_are_refused_before_a_label_is_bought(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the recipe must have the model's bounds"):
        run(tmp_path / "bounds", recipe=replace(RECIPE, bounds=(-1.0, 1.0)))
    rows = Samples(train().x.flatten(1), train().labels)
    with pytest.raises(ValueError, match="conditions are for images, but inputs have the shape"):
        TINY(
            Classifier(nn.Linear(64, 10)),
            train=rows[:300],
            clean=rows[300:],
            field=Samples(field().x.flatten(1)),
            labeller=labels_of(field()),
            folder=tmp_path / "table",
            recipe=RECIPE,
        )


def test_failures_in_the_report_carry_their_risk_and_can_be_sorted_by_it(done) -> None:
    folder, result = done
    assert result.suite is not None
    evidence = gather(folder, observers=())
    rated = [round(failure.risk, 9) for failure in evidence.gallery.failures if failure.risk is not None]
    assert rated
    assert set(rated) <= {round(float(risk), 9) for risk in Suite.open(folder / "cases")["risk"]}
    page = render_page(evidence, ())
    assert '<option value="-risk">' in page
    assert page.count("<dt>risk</dt>") == len(rated)
