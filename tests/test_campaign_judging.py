"""Judges of a campaign's moves: what they learn from, which moves they reject, and what the user is told."""

from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from operant import Classifier, Samples, load_digits, results, spawn
from operant.campaign import Campaign, judging
from operant.campaign.field import FieldState
from operant.campaign.judging import _largest_radius, _no_judge, _rows, _seeds
from operant.campaign.observers.risk import RiskOfField, RiskOfRound
from operant.campaign.progress import permanent_lines
from operant.campaign.records import MoveTest
from operant.campaign.reserving import MAX_PER_SEED, RESERVED, TrainingParts, reserve, risk_seeds
from operant.campaign.risk import CONDITIONS_UNLIKE_FIELD
from operant.conditions import Recipe, apply, half_normal, uniform
from operant.data import labels_of
from operant.execution import RunFolder
from operant.execution.events import ignore
from operant.generate import PGD, ConditionMove, GradientMove, RecipeDraws, unguided
from operant.measure import judge as judge_module
from operant.measure.judge import MIN_DRAWS
from operant.model import Finding
from operant.networks import fit, initialise
from operant.report import write_report
from operant.report.gathering import gather
from operant.retrain import OperationalFinetune

NOISE = Recipe(severities={"gaussian_noise": half_normal(0.15, high=0.5)})
DARK = Recipe(severities={"brightness": uniform(-0.5, -0.3)})
DRAWS = RecipeDraws(recipe=NOISE, per_seed=4)
BOTH = {"noise": partial(unguided, DRAWS), "dark": partial(unguided, RecipeDraws(recipe=DARK, per_seed=4))}
TINY = Campaign(
    requirement=0.001,
    moves={"conditions": partial(unguided, DRAWS)},
    rounds=1,
    labels=60,
    max_drop=0.1,
    seeds_per_round=40,
    cases_per_round=10,
    label_batch=10,
    dimensions=4,
    judge_draws=120,
    retrainer=OperationalFinetune(epochs=1, steps=5, progress=False),
    observers=(),
)


@cache
def digits():
    return load_digits()


@cache
def model():
    start = initialise(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), generator=spawn(0, "weights"))
    return Classifier(fit(start, digits().train[:400], epochs=4, generator=spawn(0, "fit"), progress=False).module)


def clean():
    return digits().train[600:700]


def labelled(recipe=NOISE, n=600):
    g, source = spawn(0, "field"), digits().test
    rows = torch.randint(len(source), (n,), generator=g)
    return Samples(apply(source.x[rows], recipe.draw(n, generator=g)), source.labels[rows])


def run(folder, *, later=None, recipe=None, on_event=ignore, **changes):
    """A campaign in a noisy field; the inputs of a later one arrive in round 2."""
    first, every = labelled(), labelled() if later is None else Samples.concat([labelled(), later])
    parts = {"train": digits().train[:600], "clean": clean(), "labeller": labels_of(every)}

    def field(number):
        here = every if number >= 2 else first
        return Samples(here.x, ids=here.ids)

    return replace(TINY, **changes)(model(), field=field, folder=folder, recipe=recipe, on_event=on_event, **parts)


def digest(folder):
    with RunFolder(folder) as opened:
        return opened.digest()


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr(judge_module, "NETWORK_STEPS", 10)


def test_a_judge_rates_the_cases_of_its_move_and_survives_a_resume(tmp_path):
    folder, moves = tmp_path / "run", TINY.moves | {"pgd": partial(unguided, PGD(radius=1))}
    done = run(folder, moves=moves)
    ours, theirs = done.rounds[1].tests
    assert ours.searched
    assert ours.accepted > 0.8
    assert ours.draws == 120
    assert ours.findings == ()
    assert str(theirs).startswith("pgd: no judge, because it has no unselected draws")
    assert theirs.searched
    assert [(where, f.name) for where, f in gather(folder).findings if where == "moves"] == [("moves", "no judge")]
    before = digest(folder)
    page = write_report(folder, tmp_path / "report")
    assert str(ours) in page.read_text()
    (folder / "round-000" / ".judge-000.json.seal").unlink()
    for file in ("round", "shares", "seeds"):
        (folder / "round-001" / f".{file}.json.seal").unlink()
    again = run(folder, moves=moves)
    assert again.rounds == done.rounds
    assert digest(folder) == before


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (partial(unguided, DRAWS), "estimate = true"),
        (partial(GradientMove, radius=1.0, steps=2), "at the given radius 1, and fewer than half do at 0.0625"),
    ],
)
def test_nothing_is_searched_with_a_move_whose_draws_are_all_rejected(tmp_path, monkeypatch, move, said):
    real = judging.fit_judge
    reject = cached_first(lambda *a, **b: replace(real(*a, **b), accepted=0.0, findings=()))
    monkeypatch.setattr(judging, "fit_judge", reject)
    done = run(tmp_path, moves={"bad": move})
    last = done.rounds[-1]
    assert last.nothing_to_search
    assert (last.attempted, last.found, last.changed) == (0, 0, False)
    assert "nothing was searched" in str(last)
    for text in ("Nothing was searched. bad: 0 % of 120 unselected draws look like field inputs", said):
        assert text in done.reason
    assert [f.name for where, f in gather(tmp_path).findings if where == "moves"] == ["draws unlike the field"]
    assert "Nothing was searched" in write_report(tmp_path, tmp_path).read_text()


BLIND = Finding(name="judge is blind", problem="the judge rates all inputs equally", advice="Check the draws")


def test_doubts_about_a_judge_are_shown_in_terminal_and_report(tmp_path, monkeypatch):
    real, events = judging.fit_judge, []
    monkeypatch.setattr(judging, "fit_judge", lambda *a, **b: replace(real(*a, **b), findings=(BLIND,)))
    done = run(tmp_path / "run", on_event=events.append)
    (test,) = done.rounds[1].tests
    assert test.doubts == (BLIND,)
    assert str(test).endswith("unselected draws look like field inputs; the judge rates all inputs equally")
    assert str(test) in [line for event in events for line in permanent_lines(event)]
    shown = [(f.name, f.problem) for where, f in gather(tmp_path / "run").findings if where == "moves"]
    assert shown == [("judge is blind", "conditions: the judge rates all inputs equally")]
    page = write_report(tmp_path / "run", tmp_path / "report")
    assert page.read_text().count("the judge rates all inputs equally") == 2  # with the move, and as a self-check
    assert page.with_suffix(".md").read_text().count("the judge rates all inputs equally") == 2


def test_a_doubt_does_not_repeat_what_the_test_of_the_move_says():
    judge = SimpleNamespace(field_inputs=300, folds=(), trusted=False, accepted=0.2, draws=120)
    judge.findings = judge_module._findings(judge, Samples(torch.rand(40, 2, generator=spawn(0))))
    test = judging._move_judge("m", judge).test
    assert [f.name for f in test.findings] == ["draws unlike the field", "few draws"]
    assert str(test).count("draws look like field inputs") == 1


def test_a_move_with_some_draws_unlike_the_field_is_searched_with_and_doubted(tmp_path, monkeypatch):
    real, events = judging.fit_judge, []

    def fit_judge(*given, **options):
        judge = replace(real(*given, **options), accepted=0.69)
        return replace(judge, findings=judge_module._findings(judge, given[1]))

    monkeypatch.setattr(judging, "fit_judge", fit_judge)
    done = run(tmp_path / "run", on_event=events.append)
    (test,) = done.rounds[1].tests
    said = "part of the draws do not look like field inputs, and a good recipe reaches 80 to 100 %"
    assert test.searched
    assert [finding.name for finding in test.findings] == ["some draws unlike the field"]
    assert str(test) == f"conditions: 69 % of 120 unselected draws look like field inputs; {said}"
    assert str(test) in [line for event in events for line in permanent_lines(event)]
    page = write_report(tmp_path / "run", tmp_path / "report")
    assert page.read_text().count(said.removesuffix(" %")) == 2  # with the move, and as a self-check
    assert "their orientation above all" in page.read_text()


def test_a_share_just_below_half_is_shown_below_half():
    test = MoveTest(move="m", searched=False, accepted=299 / 600, draws=600)
    assert str(test) == "m: 49.8 % of 600 unselected draws look like field inputs, so nothing is searched with it"


# After drift


def test_a_changed_field_is_judged_by_its_own_inputs_and_its_moves_anew(tmp_path, monkeypatch):
    later, judged, real = labelled(DARK), [], judging.fit_judge

    def fit_judge(inputs, *given, **options):
        judged.append(inputs.ids)
        return real(inputs, *given, **options)

    monkeypatch.setattr(judging, "fit_judge", fit_judge)
    options = {"later": later, "moves": BOTH, "rounds": 3, "labels": 200}
    done = run(tmp_path, **options)
    assert [r.drift is not None for r in done.rounds] == [False, False, True, False]
    assert [{t.move: t.searched for t in r.tests} for r in done.rounds[1::2]] == [
        {"noise": True, "dark": False},
        {"noise": False, "dark": True},
    ]
    assert [list(r.moves) for r in done.rounds[1::2]] == [["noise"], ["dark"]]
    assert [float(torch.isin(ids, later.ids).double().mean()) for ids in judged] == [0.0, 0.0, 1.0, 1.0]
    before = digest(tmp_path)
    for file in ("round-002/.judge-001", "round-003/.round", "round-003/.seeds", "round-003/.shares"):
        (tmp_path / f"{file}.json.seal").unlink()
    again = run(tmp_path, **options)
    assert again.rounds == done.rounds
    assert digest(tmp_path) == before
    assert len(judged) == 5  # only the judge that was missing is fitted again


def test_conditions_that_are_unlike_a_changed_field_are_doubted_there_and_said_once(tmp_path):
    events, options = [], {"rounds": 4, "labels": 300, "draws": 60, "observers": (RiskOfField(),)}
    done = run(tmp_path, later=labelled(DARK), moves=BOTH, recipe=NOISE, on_event=events.append, **options)
    assert [r.drift is not None for r in done.rounds] == [False, False, True, False, False]
    doubted = [number for number in range(1, 5) if CONDITIONS_UNLIKE_FIELD in names_of_findings(tmp_path, number)]
    assert doubted == [3, 4]
    said = [event.round for event in events for line in permanent_lines(event) if "not to be believed" in line]
    assert said == [3]
    before = digest(tmp_path)
    run(tmp_path, later=labelled(DARK), moves=BOTH, recipe=NOISE, **options)
    assert digest(tmp_path) == before


def names_of_findings(folder, number):
    record = results.load(folder / f"round-{number:03d}" / "risk.json", RiskOfRound)
    return {finding.name for finding in record.findings}


def test_few_inputs_of_a_changed_field_leave_the_five_scores_and_terminal_and_report_say_so(tmp_path):
    events = []
    done = run(tmp_path / "run", later=labelled(DARK, 200), moves=BOTH, rounds=3, labels=200, on_event=events.append)
    last = done.rounds[3]
    assert all(test.searched and test.accepted is None for test in last.tests)
    assert last.attempted
    lines = [line for event in events for line in permanent_lines(event)]
    page = write_report(tmp_path / "run", tmp_path / "report")
    for test in last.tests:
        assert "distinct field inputs are too few: 250 are needed; the five scores rate its cases" in str(test)
        assert str(test) in lines
        assert str(test) in page.read_text()
        assert test.move in page.with_suffix(".md").read_text()
    assert "the five scores rate its cases" in page.with_suffix(".md").read_text()


def cached_first(fit):
    """The result of the first call for all calls: a judge takes a second."""
    kept = []

    def call(*given, **options):
        if not kept:
            kept.append(fit(*given, **options))
        return kept[0]

    return call


@pytest.mark.parametrize("limit", [0.9, 0.4, 0.2])
def test_the_largest_radius_that_passes_is_found_by_bisection(limit):
    tried = []

    def fit(radius):
        tried.append(radius)
        return SimpleNamespace(trusted=radius <= limit)

    radius, judge = _largest_radius(1.0, fit)
    assert judge.trusted
    assert limit / 1.5 <= radius <= limit
    assert len(tried) == 4


def test_no_radius_passes():
    radius, judge = _largest_radius(1.0, lambda radius: SimpleNamespace(trusted=False))
    assert judge is None
    assert radius == pytest.approx(1 / 16, rel=0.01)


def field_of(*, priors=(), changed=False):
    """By its profile, only the first two classes occur in this field."""
    field = FieldState(None, model(), None, None, seed=0, dimensions=4, follow=True, priors=priors)
    field.profile = SimpleNamespace(weights=lambda inputs: torch.where(inputs.labels < 2, 1.0, 0.0) / len(inputs))
    field.fitted_in, field.changed = "round-000", changed
    return field


def test_seeds_of_judges_are_not_searched_and_have_the_shares_of_the_field():
    train = digits().train[:600]
    parts = reserve(train, judge_draws=120, draws=0)
    seeds = _seeds(parts, field_of(), 120)
    assert len(seeds) == 120
    assert set(seeds.labels.tolist()) == {0, 1}
    assert not bool(torch.isin(seeds.ids, parts.search.ids).any())
    assert 400 <= len(parts.search) < 600
    few = replace(parts, reserved=parts.reserved[:80])
    assert len(_seeds(few, field_of(), 120)) == 80  # not more than were reserved
    labels, shares = torch.tensor([0, 1, 1, 1]), torch.tensor([0.5, 0.4, 0.1])  # no input of class 2
    drawn = labels[_rows(labels, shares, 900, spawn(0))]
    assert 400 < int((drawn == 0).sum()) < 600
    assert len(drawn) == 900
    lacking = labels[_rows(labels, torch.tensor([0.0, 0.0, 1.0]), 900, spawn(0))]  # no input of a class with a share
    assert 400 < int((lacking == 0).sum()) < 600


def test_judges_and_risk_map_have_the_same_class_shares():
    train, priors = digits().train[:600], (0.0, 0.0, 0.3, 0.7)
    parts = reserve(train, judge_draws=120, draws=0)
    fitted, moved = field_of(priors=priors), field_of(priors=priors, changed=True)
    assert fitted.class_shares(train).tolist() == [*priors, *[0.0] * 6]
    assert set(_seeds(parts, fitted, 120).labels.tolist()) == {2, 3}
    ours = train.labels.bincount(minlength=10)[:2] / int((train.labels < 2).sum())
    assert moved.class_shares(train).tolist() == pytest.approx([*ours.tolist(), *[0.0] * 8])
    assert set(_seeds(parts, moved, 120).labels.tolist()) == {0, 1}  # priors of the earlier field no longer hold


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 900), judge_draws=st.integers(100, 600))
def test_inputs_are_reserved_for_judges_only_if_a_judge_can_be_fitted(n, judge_draws):
    parts = reserve(digits().train[:n], judge_draws=judge_draws, draws=0)
    kept = len(parts.reserved)
    assert kept == 0 or kept >= MIN_DRAWS
    assert len(parts.search) == n - kept
    assert kept > 0 or n < 500


@pytest.mark.parametrize(
    ("judge_draws", "draws", "separate"), [(0, 300, True), (120, 300, True), (0, 5000, False), (120, 5000, False)]
)
def test_the_risk_map_learns_from_reserved_inputs_if_they_suffice(judge_draws, draws, separate):
    train, held = digits().train[:600], digits().train[600:900]
    parts = reserve(train, judge_draws=judge_draws, draws=draws)
    assert sorted([*parts.search.ids.tolist(), *parts.reserved.ids.tolist()]) == sorted(train.ids.tolist())
    assert len(parts.reserved) < 1.3 * RESERVED * len(train)
    seeds = risk_seeds(parts, held, draws=draws)
    from_train = seeds.teaching.ids[torch.isin(seeds.teaching.ids, train.ids)]
    assert from_train.tolist() == (parts.reserved if separate else train).ids.tolist()
    assert [finding.name for finding in seeds.findings] == ([] if separate else ["risk map not separate"])
    assert (MAX_PER_SEED * (len(parts.reserved) + len(held) / 2) >= draws) == separate


@settings(max_examples=25, deadline=None)
@given(rare=st.sets(st.integers(0, 9), max_size=4), halved=st.booleans())
def test_only_inputs_of_classes_that_were_not_reserved_teach_and_are_searched_from(rare, halved):
    train, held = digits().train[:600], digits().train[600:900]
    of_rare = torch.isin(train.labels, torch.tensor(sorted(rare), dtype=torch.int64))
    reserved = reserve(train[~of_rare], judge_draws=0, draws=150).reserved
    search = train[~torch.isin(train.ids, reserved.ids)]
    parts = TrainingParts(every=train, search=search, reserved=reserved)
    seeds = risk_seeds(parts, held if halved else held[:1], draws=150)
    both = search[torch.isin(search.ids, seeds.teaching.ids)]
    assert both.ids.tolist() == ([] if halved else train[of_rare].ids.tolist())
    assert set(seeds.teaching.labels.tolist()) == set(range(10))
    named = f"{'class' if len(rare) == 1 else 'classes'} {', '.join(str(label) for label in sorted(rare))}"
    assert [f"is of {named}, so" in f.problem for f in seeds.findings] == [True] * bool(rare and not halved)


def test_a_rare_class_does_not_make_all_training_inputs_teach():
    labels = torch.arange(5000) % 3
    labels[:2] = 3  # two of a class that has one clean input
    train = Samples(torch.rand(5000, 1, 2, 2, generator=spawn(0)), labels)
    held = Samples(torch.rand(400, 1, 2, 2, generator=spawn(1)), torch.tensor([3, *[0, 1, 2] * 133]))
    parts = reserve(train, judge_draws=0, draws=1000)
    seeds = risk_seeds(parts, held, draws=1000)
    both = torch.isin(parts.search.ids, seeds.teaching.ids)
    assert int(both.sum()) <= 2
    assert set(parts.search.labels[both].tolist()) <= {3}
    assert set(seeds.teaching.labels.tolist()) == {0, 1, 2, 3}
    assert 150 < len(seeds.judging) < 250


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 200), scenes=st.integers(1, 60), draws=st.sampled_from([30, 3000]), grouped=st.booleans())
def test_no_input_or_group_teaches_and_judges_and_nothing_searched_does_either(n, scenes, draws, grouped):
    train, groups = digits().train[:600], tuple(f"scene {row % scenes}" for row in range(n))
    held = digits().train[600 : 600 + n]
    held = replace(held, groups=groups) if grouped else held
    parts = reserve(train, judge_draws=0, draws=draws)
    seeds = risk_seeds(parts, held, draws=draws)
    ours = torch.isin(seeds.teaching.ids, held.ids)
    assert sorted([*seeds.teaching.ids[ours].tolist(), *seeds.judging.ids.tolist()]) == sorted(held.ids.tolist())
    assert len(seeds.judging) > 0
    assert not bool(torch.isin(seeds.judging.ids, torch.cat([seeds.teaching.ids, train.ids])).any())
    if bool(ours.any()):
        assert not bool(torch.isin(seeds.judging.units, seeds.teaching[ours].units).any())
    if not seeds.findings:
        assert not bool(torch.isin(parts.search.ids, seeds.teaching.ids).any())


def test_clean_inputs_that_cannot_be_halved_all_judge():
    parts = reserve(digits().train[:600], judge_draws=0, draws=300)
    one_group = replace(clean(), groups=("scene",) * len(clean()))
    for held in (one_group, clean()[:1]):
        seeds = risk_seeds(parts, held, draws=300)
        assert seeds.judging is held
        assert seeds.teaching.ids.tolist() == parts.reserved.ids.tolist()


def test_one_group_of_training_inputs_is_searched_from_and_nothing_is_reserved():
    train = replace(digits().train[:600], groups=("scene",) * 600)
    parts = reserve(train, judge_draws=120, draws=300)
    assert len(parts.search) == 600
    assert len(_seeds(parts, field_of(), 120)) == 0
    assert "fewer than 100 training inputs can be reserved for judges" in _no_judge(DRAWS, labelled(), 0)


def test_few_field_inputs_and_foreign_fuzzers_have_no_judge():
    inputs = Samples(torch.rand(260, 1, 8, 8, generator=spawn(0)))
    assert _no_judge(DRAWS, inputs, 120) == ""
    assert "240 distinct field inputs are too few: 250 are needed" in _no_judge(DRAWS, inputs[:240], 120)
    assert "no unselected draws" in _no_judge(PGD(radius=1), inputs, 120)
    assert "fewer than 100 training inputs can be reserved for judges" in _no_judge(DRAWS, inputs, 80)
    grouped = replace(inputs, groups=("scene",) * 260)
    assert "nearly all field inputs are in one half" in _no_judge(DRAWS, grouped, 120)
    (told,) = MoveTest(move="1", searched=True, why="240 distinct field inputs are too few").findings
    assert told.problem.startswith("'1': no judge, because 240")
    assert told.advice == "Give more distinct field inputs, in groups that can be halved"
    (kept,) = MoveTest(move="1", searched=True, why=_no_judge(DRAWS, inputs, 80)).findings
    assert kept.advice == "Give more training inputs"
    (foreign,) = MoveTest(move="pgd", searched=True, why=_no_judge(PGD(radius=1), inputs, 120)).findings
    assert foreign.advice == "If this is your own move, give it an `unselected` method"
    with pytest.raises(ValueError, match="judge_draws must be 0, for no judges, or at least 100, got 50"):
        replace(TINY, judge_draws=50)


def test_unselected_draws_are_one_case_per_seed_whether_it_fails_or_not():
    seeds = digits().test[:30]
    climb = ConditionMove(recipe=NOISE, naturalness=None)
    gradient = GradientMove(naturalness=None, weight=0, radius=0.5, steps=3)
    for move in (DRAWS, climb, gradient):
        draws, again = (move.unselected(model(), seeds, generator=spawn(1)) for _ in range(2))
        assert draws.x.shape == seeds.x.shape
        assert draws.x.equal(again.x)
        assert draws.labels.equal(seeds.labels)
    assert float((draws.x - seeds.x).flatten(1).norm(dim=1).max()) <= 0.5 + 1e-6
    found = gradient(model(), seeds, generator=spawn(1))  # stops at failures, so it moves less
    assert float(found.distances("l2").mean()) < float((draws.x - seeds.x).flatten(1).norm(dim=1).mean())
