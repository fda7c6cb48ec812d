"""Laws of a campaign: what it tells is what happened, its bounds hold, and nothing that was done is lost.

Run as a script this file kills a campaign again and again, at chosen moments and at any, and goes on with it.
"""

import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, load_digits, results, spawn
from operant.campaign import (
    Campaign,
    CampaignResult,
    Event,
    Round,
    allocate,
    assessment,
    confidence_of,
    hardening,
    turns,
    view,
)
from operant.campaign.assessment import SequentialAssessment, assess_model, labels_needed, what_it_takes
from operant.campaign.choosing import unguided
from operant.campaign.feedback import FLOOR, reweighted
from operant.campaign.records import LOOKED_AT, Certainty, StopRecord
from operant.data import LabelsMissing, labels_of
from operant.execution.run_folder import Damaged, RunFolder
from operant.generate import GradientMove, UncertaintyFuzz
from operant.measure import Naturalness, with_dropout
from operant.networks import fit, initialise, load_weights
from operant.results import TEMPORARY
from operant.retrain import OperationalFinetune, training

digits = cache(load_digits)

GRADIENT = {"small": partial(GradientMove, radius=0.5, steps=2), "large": partial(GradientMove, radius=1.0, steps=2)}
TINY = Campaign(
    requirement=0.001,
    moves=GRADIENT,
    rounds=2,
    labels=150,
    max_drop=0.1,
    seeds_per_round=30,
    cases_per_round=15,
    label_batch=10,
    chunk=15,
    dimensions=4,
    finetune=OperationalFinetune(epochs=2, steps=15, progress=False),
)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@cache
def model() -> Classifier:
    """One that has not learned enough, so that rounds help."""
    start = initialise(network, generator=spawn(0, "weights"))
    return Classifier(fit(start, train(), epochs=6, generator=spawn(0, "fit"), progress=False).module)


def train() -> Samples:
    return digits().train[:300]


def clean() -> Samples:
    return digits().train[300:450]


def field(n: int = 600, *, dark: bool = False, seed: int = 0) -> Samples:
    """Labelled inputs as the field has them: digits with noise; dark ones are inverted."""
    g, source = spawn(seed, "field", n, str(dark)), digits().test
    rows = torch.randint(len(source), (n,), generator=g)
    x = source.x[rows] + 0.1 * torch.rand((n, *source.x.shape[1:]), generator=g)
    return Samples((1 - x if dark else x).clamp(0, 1), source.labels[rows])


def unlabelled(samples: Samples) -> Samples:
    return Samples(samples.x, ids=samples.ids)


def run(
    folder: Path, labelled: Samples | None = None, *, workers: int = 1, seed: int = 0, **changes: Any
) -> CampaignResult:
    """A campaign that costs a second; changes are of its options, or of what it is called with."""
    labelled = field() if labelled is None else labelled
    given_ = {"field": unlabelled(labelled), "labeller": labels_of(labelled), "train": train(), "clean": clean()}
    called = {name: changes.pop(name, value) for name, value in given_.items()} | {"watch": changes.pop("watch", None)}
    return replace(TINY, **changes)(model(), folder=folder, seed=seed, workers=workers, **called)


def digest(folder: Path) -> str:
    with RunFolder(folder, signature=json.loads((folder / "run.json").read_bytes())) as opened:
        return opened.digest()


def same_weights(a: Classifier, b: Classifier) -> bool:
    x = digits().test.x
    return torch.equal(a.batched_logits(x), b.batched_logits(x))


@pytest.fixture(scope="module", autouse=True)
def _fitted_once() -> Iterator[None]:
    """Most of these campaigns have the same field: what looks natural in it is learned once."""
    fit_naturalness, known = view.fit_naturalness, {}

    def remembered(inputs: Samples, *, generator: torch.Generator, **options: Any) -> Naturalness:
        key = inputs.ids.sum().item(), len(inputs), generator.initial_seed()
        if key not in known:
            known[key] = fit_naturalness(inputs, generator=generator, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "fit_naturalness", remembered)
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CampaignResult]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run(folder)


class Asking:
    """A labeller that remembers what it was asked; silent after so many batches."""

    def __init__(self, labelled: Samples, *, batches: int = 10**9) -> None:
        self.labels, self.left = labels_of(labelled), batches
        self.asked: list[Tensor] = []

    def __call__(self, asked: Samples) -> Tensor:
        assert asked.y is None
        if self.left == 0:
            raise LabelsMissing("write them")
        self.left -= 1
        self.asked.append(asked.ids)
        return self.labels(asked)

    @property
    def ids(self) -> Tensor:
        return torch.cat(self.asked)


# What happened --------------------------------------------------------------------------------------------------------


def test_rounds_tell_what_happened(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    first, *later = done.rounds
    assert [r.number for r in done.rounds] == [0, 1, 2]
    assert first.attempted == first.cases == 0
    assert not first.changed
    assert first.assessment is not None
    cases = 0
    for each in later:
        cases += each.chosen
        assert each.attempted == TINY.seeds_per_round
        assert 0 < each.chosen <= min(each.operational, TINY.cases_per_round)
        assert each.operational <= each.found
        assert sum(each.by_move.values()) == each.operational
        assert each.cases == cases
        assert each.arrived == 600
        assert sum(each.moves.values()) == pytest.approx(1)
        assert each.assessment is None or each.changed == (each.assessment.before == 0)
        assert each.retraining is not None
        assert each.retraining.n_cases == cases
        assert results.load(folder / f"round-{each.number:03d}" / "round.json", Round) == each
    assert any(r.changed for r in later)
    assert later[-1].clean == done.model.accuracy(clean())
    assert done.suite is not None
    assert len(done.suite) == cases
    assert bool((done.suite.prediction != done.suite.label).all())
    assert done.labels == sum(r.assessment.bought for r in done.rounds if r.assessment)
    assert done.assessment == [r.assessment for r in done.rounds if r.assessment][-1]
    assert str(done).count("\n") == 4


def test_what_is_told_of_the_last_model_is_true(undisturbed: tuple[Path, CampaignResult]) -> None:
    """Its failures are those of the delivered weights on inputs whose labels stand in the folder."""
    folder, done = undisturbed
    last = max(r.number for r in done.rounds if r.assessment)
    known = [results.load(f, turns.LabelBatch) for f in sorted((folder / f"round-{last:03d}").glob("labels-*.json"))]
    ids, told = torch.cat([k.ids for k in known]), torch.cat([k.labels for k in known])
    everything = field()
    rows = torch.stack([(everything.ids == i).nonzero()[0, 0] for i in ids])
    assert torch.equal(told, everything.labels[rows])
    assert int((done.model.predict(everything.x[rows]) != told).sum()) == done.assessment.failures
    assert len(ids) == done.assessment.labels


def test_the_model_that_came_stays_as_it_is(undisturbed: tuple[Path, CampaignResult]) -> None:
    start = initialise(network, generator=spawn(0, "weights"))
    again = Classifier(fit(start, train(), epochs=6, generator=spawn(0, "fit"), progress=False).module)
    assert same_weights(model(), again)
    assert not same_weights(model(), undisturbed[1].model)


def test_a_watcher_hears_of_every_step(tmp_path: Path) -> None:
    events: list[Event] = []
    done = run(tmp_path, rounds=1, watch=events.append)
    steps = [e.step for e in events]
    for step in ("round-000/profile", "round-000/assess", "round-001/suite", "round-001/retrain", "round"):
        assert step in steps
    assert [e.told["round"] for e in events if e.step == "round"] == [str(r) for r in done.rounds]
    assert all(0 <= e.done <= e.total for e in events)


@pytest.mark.slow
def test_breeding_for_a_pattern_is_a_move(tmp_path: Path) -> None:
    """Of a model with dropout: what is bred and fails is rated like any other case; how sure the model was is kept."""
    fuzz = UncertaintyFuzz(pattern="HH", radius=0.2, population=8, generations=2, tournament=3, passes=8)
    campaign = replace(TINY, moves={"gradient": GRADIENT["small"], "bred": partial(unguided, fuzz)}, rounds=1)
    labelled, ran = field(), []
    for name, workers in (("one", 1), ("two", 2)):
        options = {"field": unlabelled(labelled), "labeller": labels_of(labelled), "workers": workers}
        dropping = with_dropout(model(), before=["3"], rate=0.5)
        ran.append(campaign(dropping, train=train(), clean=clean(), folder=tmp_path / name, **options))
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    last = ran[0].rounds[-1]
    assert last.operational > 0
    assert set(last.by_move) == {"gradient", "bred"}
    parts = [Suite.open(place) for place in sorted((tmp_path / "one" / "round-001" / "suite").glob("chunk-*"))]
    found = Suite.concat(parts)
    bred = found[found["move"] == "bred"]
    assert len(bred) > 0
    assert bool((bred.prediction != bred.label).all())
    assert set(bred["aim"].tolist()) == {"HH"}
    assert bool((bred.distances("linf") <= 0.2 + 1e-6).all())
    kept = results.load(tmp_path / "one" / "round-001" / "patterns.json", Certainty)
    assert (kept.failures, len(kept.vro), kept.reason) == (last.operational, min(last.operational, LOOKED_AT), "")


def test_without_dropout_how_decided_the_model_was_is_kept(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    for each in done.rounds[1:]:
        kept = results.load(folder / f"round-{each.number:03d}" / "patterns.json", Certainty)
        assert (kept.failures, len(kept.pcs), len(kept.vro)) == (each.operational, each.operational, 0)
        assert "without any dropout" in kept.reason


# Where it ends --------------------------------------------------------------------------------------------------------


def test_a_requirement_that_is_already_met_ends_it(tmp_path: Path) -> None:
    done = run(tmp_path, requirement=0.95)
    assert done.met
    assert done.reason.startswith("The requirement was met after round 0")
    assert len(done.rounds) == 1
    assert done.suite is None
    assert same_weights(done.model, model())
    assert done.assessment.upper <= 0.95


STUBBORN = OperationalFinetune(epochs=1, steps=1, learning_rate=1e-12, progress=False)


@pytest.mark.parametrize(
    ("changes", "reason", "rounds"),
    [
        ({"rounds": 1}, "All rounds are spent after round 1", 2),
        ({"labels": 1}, "All labels are spent after round 0", 1),
        ({"cases": 10}, "All cases are spent after round 1", 2),
        ({"finetune": STUBBORN, "rounds": 5}, "Rounds 1 and 2 changed nothing", 3),
    ],
)
def test_a_requirement_out_of_reach_ends_with_why_and_what_it_would_take(tmp_path, changes, reason, rounds) -> None:
    done = run(tmp_path, **changes)
    assert not done.met
    assert done.reason.startswith(reason)
    assert "To meet it: pmi is estimated at" in done.reason
    assert "must fall below 0.10% first" in done.reason
    assert len(done.rounds) == rounds
    assert done.labels <= changes.get("labels", TINY.labels)
    assert done.rounds[-1].cases <= changes.get("cases", TINY.cases)


def test_a_model_that_stays_as_it_was_is_assessed_further(tmp_path: Path) -> None:
    """With the same confidence, on other inputs, until labels are spent or the requirement is shown to be met."""
    asking = Asking(field(2000))
    wanted = 1 - model().accuracy(field(2000)) + 0.05
    done = run(tmp_path, field(2000), labeller=asking, requirement=wanted, labels=300, finetune=STUBBORN)
    first, *later = [r.assessment for r in done.rounds]
    assert first.before == 0
    assert first.labels == 200  # two thirds
    assert later[0].before == first.labels
    assert later[0].confidence == first.confidence
    assert later[0].failures >= first.failures
    assert len(asking.ids.unique()) == len(asking.ids) == done.labels == done.assessment.labels
    assert done.met == (done.assessment.upper <= wanted)
    assert first.labels < done.labels <= 300
    assert "the model stayed as it was" in str(done.rounds[1])


def test_a_round_whose_retraining_was_refused_buys_labels_for_the_next(tmp_path: Path) -> None:
    """Also where they cannot show that the requirement is met: the monitor is to see more than it chose by."""
    done = run(tmp_path, finetune=STUBBORN, rounds=5)
    first, *later = [r.assessment for r in done.rounds]
    assert [r.changed for r in done.rounds] == [False] * 3
    known = first.labels
    for each in later:
        assert (each.before, each.confidence) == (known, first.confidence)
        assert each.bought >= TINY.labels // 6
        known = each.labels


def test_an_earlier_smaller_bound_is_told(undisturbed: tuple[Path, CampaignResult]) -> None:
    done = undisturbed[1]
    bounds = {r.number: r.assessment.upper for r in done.rounds if r.assessment}
    best = min(bounds, key=bounds.__getitem__)
    told = f"The smallest bound, {bounds[best]:.2%}, is that of the model after round {best}"
    later = any(r.changed for r in done.rounds[best + 1 :])
    assert (told in done.reason) == (bounds[best] < done.assessment.upper and later)


def test_a_smaller_budget_does_not_forget_finished_rounds(tmp_path: Path) -> None:
    full = run(tmp_path, rounds=2)
    assert len(full.rounds) == 3
    for less in ({"rounds": 1}, {"rounds": 2, "labels": 1}, {"rounds": 2, "cases": 1}):
        again = run(tmp_path, **less)
        assert again.rounds == full.rounds
        assert same_weights(again.model, full.model)


def test_how_it_ended_is_told_until_it_goes_on(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    first = results.load(tmp_path / "ended.json", StopRecord)
    assert (first.why, first.last, first.rounds) == ("All rounds are spent after round 1.", 1, 1)
    with pytest.raises(LabelsMissing):
        run(tmp_path, rounds=2, labels=1000, labeller=Asking(field(), batches=0))
    assert not (tmp_path / "ended.json").exists()  # it is under way
    done = run(tmp_path, rounds=2, labels=1000)
    ended = results.load(tmp_path / "ended.json", StopRecord)
    assert (ended.met, ended.last, ended.rounds) == (done.met, done.rounds[-1].number, 2)
    assert done.reason.startswith(ended.why[:-1])
    assert done.reason.endswith(ended.advice)


@pytest.mark.parametrize(
    "told",
    [lambda y: y + 10, lambda y: y.float(), lambda y: y[:-1], lambda y: -y - 1],
    ids=["too large", "float", "few", "negative"],
)
def test_labels_that_are_none_are_refused_and_can_be_mended(tmp_path: Path, told: Any) -> None:
    right = labels_of(field())
    with pytest.raises(ValueError, match="labels must be .* whole numbers from 0 to 9"):
        run(tmp_path, labeller=lambda asked: told(right(asked)), rounds=1)
    assert run(tmp_path, rounds=1).rounds == run(tmp_path / "other", rounds=1).rounds


def test_what_a_campaign_hands_back_lies_in_its_folder(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    kept = model().rewrap(load_weights(model().unwrap(), folder / "model.safetensors"))
    assert same_weights(kept, done.model)
    assert Suite.open(folder / "cases").digest() == done.suite.digest()


def test_yields_count_seeds_on_which_a_move_came_first(undisturbed: tuple[Path, CampaignResult]) -> None:
    folder, done = undisturbed
    for r in done.rounds[1:]:
        chunks = sorted((folder / f"round-{r.number:03d}" / "suite").glob("chunk-*"))
        good = Suite.concat([Suite.open(c) for c in chunks]).operational(TINY.level, TINY.mass_quantile)
        first = [
            (m, s) for m, s, t in zip(good["move"], good.seed.tolist(), good["turn"].tolist(), strict=True) if t == 0
        ]
        assert r.first == {name: len({s for m, s in first if m == name}) for name in TINY.moves}
        assert sum(r.first.values()) <= r.attempted


def test_more_rounds_go_on_from_where_it_ended(tmp_path: Path) -> None:
    short = run(tmp_path, rounds=1)
    more = run(tmp_path, rounds=2, labels=200)
    assert more.rounds[:2] == short.rounds
    assert len(more.rounds) == 3


def test_a_field_without_an_input_to_assess_ends_with_that(tmp_path: Path) -> None:
    everything = field(600)
    roles = everything.split(profile=0.5, assessment=0.5)
    both = Samples.concat([train(), roles["assessment"]])
    done = run(tmp_path, everything, train=both)
    assert done.reason.startswith("All field inputs are assessed after round 0")
    assert "there were none" in done.reason
    assert (done.labels, done.assessment.upper, done.met) == (0, 1.0, False)


def test_what_it_would_take_is_said_in_labels_of_the_bound_in_use() -> None:
    few = SequentialAssessment(labels=100, failures=2, upper=0.09, confidence=0.975, reason="")
    needed = labels_needed(0.02, 0.05, 0.975)
    assert f"about {needed} labels" in what_it_takes(few, 0.05)
    assert assessment.confidence_sequence(round(0.02 * needed), needed, confidence=0.975).upper <= 0.05
    assert "too near 2.00% to be shown" in what_it_takes(few, 0.020001)
    assert "too few to say whether it is below 2.00%" in what_it_takes(few, 0.02)
    assert "must fall below 0.50% first" in what_it_takes(few, 0.005)
    assert "there were none" in what_it_takes(replace(few, labels=0, failures=0), 0.05)


@settings(max_examples=25)
@given(st.floats(0, 0.9), st.floats(0.001, 0.5), st.floats(0.8, 0.999))
def test_labels_needed_grow_with_how_near_the_requirement_is(share, requirement, confidence) -> None:
    easy, hard = (labels_needed(s * requirement, requirement, confidence) for s in (share / 2, share))
    assert easy <= 1.2 * hard + 20  # counts step, so that a little more can do for a little less
    assert confidence_holds(0, easy, requirement, confidence)


def confidence_holds(k: int, n: int, requirement: float, confidence: float) -> bool:
    return assessment.confidence_sequence(k, n, confidence=confidence).upper <= requirement


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"requirement": 1.0}, "requirement must be a probability"),
        ({"confidence": 0.0}, "confidence must be a probability"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"max_drop": 1.5}, "max_drop must be a share"),
        ({"when_drifted": "ignore"}, 'when_drifted must be "update" or "stop"'),
        ({"moves": {}}, "at least one move"),
    ],
)
def test_options_that_make_no_sense_are_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(TINY, **change)


def test_data_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not share inputs, got 10 in both"):
        run(tmp_path, clean=train()[:10])
    with pytest.raises(ValueError, match="there are no clean samples"):
        run(tmp_path, clean=clean()[:0])
    with pytest.raises(ValueError, match="field inputs"):
        run(tmp_path, field(8))


# Roles ----------------------------------------------------------------------------------------------------------------


def test_assessed_inputs_are_fresh_and_dealt_by_id(tmp_path: Path) -> None:
    """Some of the field is also training or clean data: it must not be assessed either."""
    labelled = Samples.concat([field(), train()[:60], clean()[:60]])
    asking = Asking(labelled)
    done = run(tmp_path, labelled, labeller=asking, labels=100)
    assert len(asking.ids) == done.labels <= 100
    assert len(asking.ids.unique()) == len(asking.ids)
    assert all(len(some) <= TINY.label_batch for some in asking.asked)
    assert bool(torch.isin(asking.ids, labelled.split(profile=0.5, assessment=0.5)["assessment"].ids).all())
    for learned in (train().ids, clean().ids, done.suite.samples().ids):
        assert not bool(torch.isin(asking.ids, learned).any())


def test_labels_are_never_overspent(tmp_path: Path) -> None:
    asking = Asking(field())
    done = run(tmp_path, labeller=asking, labels=33)
    assert len(asking.ids) == done.labels <= 33


def test_the_field_may_come_back_in_another_order(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    """Or in another order from the start: ids alone decide what is done with an input."""
    with pytest.raises(LabelsMissing):
        run(tmp_path, labeller=Asking(field(), batches=7))
    shuffled = field()[torch.randperm(600, generator=spawn(1))]
    run(tmp_path, shuffled)
    assert digest(tmp_path) == digest(undisturbed[0])


def test_field_inputs_that_are_gone_are_told(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    with pytest.raises(ValueError, match="3 of 600 field inputs that round 0 began with are gone"):
        run(tmp_path, field()[3:])


# Labels that are not there yet ----------------------------------------------------------------------------------------


def test_missing_labels_stop_it_and_it_goes_on(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    asked = []
    for batches in (0, 1, 6, 10**9):
        asking = Asking(field(), batches=batches)
        try:
            done = run(tmp_path, labeller=asking)
        except LabelsMissing:
            assert batches < 10**9
        asked += asking.asked
    assert digest(tmp_path) == digest(undisturbed[0])
    ids = torch.cat(asked)
    assert len(ids.unique()) == len(ids) == done.labels


# Retraining that fails ------------------------------------------------------------------------------------------------


def test_losses_that_are_not_finite_keep_the_weights_and_it_says_so(tmp_path: Path) -> None:
    finetune = OperationalFinetune(epochs=2, steps=15, learning_rate=1e30, optimiser="sgd", progress=False)
    done = run(tmp_path, finetune=finetune, rounds=1)
    assert same_weights(done.model, model())
    for each in done.rounds[1:]:
        assert each.retraining is not None
        assert not each.changed
        assert each.assessment is None
        assert "the model stayed as it was, the loss became" in str(each)
    assert len(done.rounds) == 2
    assert done.assessment == done.rounds[0].assessment


def test_clean_accuracy_falls_no_further_than_it_may(tmp_path: Path) -> None:
    done = run(tmp_path, max_drop=0.0, rounds=1)
    assert all(r.clean >= done.rounds[0].clean for r in done.rounds)


# Drift ----------------------------------------------------------------------------------------------------------------


def arriving(*parts: Samples) -> tuple[Samples, Callable[[int], Samples]]:
    """All inputs, and a field in which one part more arrives with every round."""
    everything = Samples.concat(parts)

    def field_(number: int) -> Samples:
        return unlabelled(Samples.concat(parts[: number + 1]))

    return everything, field_


def test_a_field_that_drifts_is_assessed_anew(tmp_path: Path) -> None:
    old, new = field(), field(200, dark=True)
    everything, there = arriving(old, old[:0], new)
    asking = Asking(everything)
    done = run(tmp_path, everything, field=there, labeller=asking, rounds=3, labels=400)
    third = done.rounds[2]
    assert [bool(r.drifted) for r in done.rounds] == [False, False, True, False]
    assert [r.arrived for r in done.rounds] == [600, 600, 800, 800]
    assert third.attempted == 0
    assert third.assessment is not None
    late = asking.ids[-sum(r.assessment.bought for r in done.rounds[2:] if r.assessment) :]
    assert bool(torch.isin(late, new.ids).all())
    assert len(late) < len(asking.ids)
    why = done.rounds[3].decisions[0].why
    assert why == f"{third.assessment.failures} of {third.assessment.labels} labelled field inputs fail"
    assert (tmp_path / "round-002" / "profile.json").exists()
    assert not (tmp_path / "round-003" / "profile.json").exists()
    assert run(tmp_path, everything, field=there, rounds=3, labels=400).rounds == done.rounds


def test_a_field_that_drifts_stops_it_if_so_configured(tmp_path: Path) -> None:
    old = field()
    everything, there = arriving(old, old[:0], field(200, dark=True))
    done = run(tmp_path, everything, field=there, rounds=3, labels=400, when_drifted="stop", requirement=0.3)
    assert done.reason.startswith("Stopped in round 2, since the field has changed: ")
    assert not done.met
    assert done.rounds[2].assessment is None
    assert done.assessment == next(r.assessment for r in reversed(done.rounds) if r.assessment)


def test_drift_is_noticed_even_if_it_comes_a_few_inputs_at_a_time(tmp_path: Path) -> None:
    everything, there = arriving(field(), field(30, dark=True), field(30, dark=True, seed=1))
    done = run(tmp_path, everything, field=there, labels=400)
    assert [bool(r.drifted) for r in done.rounds] == [False, False, True]


def test_drift_can_be_noticed_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of all rounds add up to one; the smallest p-value of permutations is below a third of each."""
    told: list[dict[str, Any]] = []

    def looked(*_: object, **options: Any) -> Any:
        told.append(options)
        return SimpleNamespace(alarm=False)

    monkeypatch.setattr(view, "drift", looked)
    with RunFolder(tmp_path, signature={}) as opened:
        seen = view.FieldState(lambda _: field(), model(), train().ids, opened, seed=0, dimensions=4, follow=True)
        seen.reference = field()
        for number in range(1, 9):
            assert seen._compare(f"round-{number:03d}", number, field()) == ""
    assert sum(options["level"] for options in told) <= view.DRIFT_LEVEL
    assert all(1 / (options["permutations"] + 1) < options["level"] / 3 for options in told)


def test_more_of_the_same_joins_the_field(tmp_path: Path) -> None:
    everything, there = arriving(field(), field(150, seed=5))
    asking = Asking(everything)
    done = run(tmp_path, everything, field=there, labeller=asking, labels=400, rounds=1)
    assert not any(r.drifted for r in done.rounds)
    assert done.rounds[1].arrived == 750
    assert bool(torch.isin(asking.ids, field(150, seed=5).ids).any())


# Feedback -------------------------------------------------------------------------------------------------------------


def test_feedback_decides_and_tells(undisturbed: tuple[Path, CampaignResult]) -> None:
    rounds = undisturbed[1].rounds
    assert [d.what for d in rounds[1].decisions] == ["seeds by class", "seeds by cell"]
    assert [d.what for d in rounds[2].decisions] == ["seeds by class", "seeds by cell", "moves"]
    for each in (d for r in rounds for d in r.decisions):
        assert each.before in str(each)
        assert each.why in str(each)
    yields = {name: rounds[1].first[name] / rounds[1].moves[name] for name in GRADIENT}
    assert max(yields, key=lambda n: yields[n]) == max(rounds[2].moves, key=lambda n: rounds[2].moves[n])
    assert not rounds[0].decisions


def test_without_feedback_nothing_is_decided(tmp_path: Path) -> None:
    done = run(tmp_path, feedback=False, rounds=1)
    assert all(not r.decisions for r in done.rounds)
    assert all(r.moves == {"small": 0.5, "large": 0.5} for r in done.rounds[1:])


shares = st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda b: sum(b) > 0.01)


@st.composite
def budgets(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    base = torch.tensor(draw(shares), dtype=torch.float64)
    counts = draw(st.lists(st.integers(0, 500), min_size=len(base), max_size=len(base)))
    return torch.tensor(counts), base / base.sum()


@given(budgets(), st.floats(0, 1))
def test_shares_sum_to_one_and_keep_the_floor(budget: tuple[Tensor, Tensor], floor: float) -> None:
    counts, base = budget
    given_ = allocate(counts, base, floor=floor)
    assert float(given_.sum()) == pytest.approx(1)
    assert bool((given_ >= floor * base - 1e-12).all())
    assert bool((given_[base == 0] == 0).all())
    assert torch.allclose(allocate(torch.zeros_like(counts), base, floor=floor), base)
    assert torch.allclose(allocate(counts, base, floor=1.0), base)


@given(budgets(), st.integers(0, 7), st.integers(1, 100))
def test_who_contributes_more_gets_more(budget: tuple[Tensor, Tensor], part: int, more: int) -> None:
    counts, base = budget
    part %= len(base)
    raised = counts.clone()
    raised[part] += more
    before, after = allocate(counts, base), allocate(raised, base)
    others = torch.arange(len(base)) != part
    assert float(after[part]) >= float(before[part]) - 1e-12
    assert bool((after[others] <= before[others] + 1e-12).all())


def test_many_counts_decide_all_but_the_floor() -> None:
    base = torch.tensor([0.7, 0.2, 0.1])
    given_ = allocate(torch.tensor([0, 0, 10**9]), base)
    assert torch.allclose(given_, FLOOR * base.double() + (1 - FLOOR) * torch.tensor([0, 0, 1.0]).double(), atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "base", "floor"),
    [([1.0], [0.5, 0.5], 0.3), ([-1.0, 1.0], [0.5, 0.5], 0.3), ([1.0, 1.0], [0.6, 0.6], 0.3), ([1.0], [1.0], 1.5)],
)
def test_counts_and_shares_that_make_no_sense_are_refused(counts, base, floor) -> None:
    with pytest.raises(ValueError, match="must be"):
        allocate(torch.tensor(counts), torch.tensor(base), floor=floor)


@given(st.data())
def test_reweighted_sums_are_the_shares_and_proportions_stay(data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, 5))
    n = data.draw(st.integers(1, 20))
    weights = torch.tensor(data.draw(st.lists(st.floats(0.01, 10), min_size=n, max_size=n)), dtype=torch.float64)
    part = torch.tensor(data.draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)))
    wanted = torch.tensor(data.draw(st.lists(st.floats(0.01, 1), min_size=parts, max_size=parts)), dtype=torch.float64)
    new = reweighted(weights, part, wanted)
    assert float(new.sum()) == pytest.approx(1)
    held = part.unique()
    assert torch.allclose(torch.bincount(part, new, minlength=parts)[held], wanted[held] / wanted[held].sum())
    for each in held:
        rows = part == each
        assert torch.allclose(new[rows] / new[rows].sum(), weights[rows] / weights[rows].sum())


# Bounds ---------------------------------------------------------------------------------------------------------------


@given(st.floats(0.5, 0.999), st.integers(1, 200))
def test_levels_of_all_rounds_together_keep_the_campaigns(confidence: float, rounds: int) -> None:
    spent = sum(1 - confidence_of(r, confidence) for r in range(rounds))
    assert spent == pytest.approx((1 - confidence) * (1 - 1 / (rounds + 1)), abs=1e-9)


EMPTY = Samples(torch.zeros(200, 1))
ZEROS = torch.zeros(200, dtype=torch.int64)  # what a model says, which is wrong where the label is 1
PATHS = 500


def simulated(pmi: float, generator: torch.Generator, **options: Any) -> SequentialAssessment:
    wrong = (torch.rand(200, generator=generator) < pmi).long()

    def ask(i: int, asked: Samples) -> Tensor:
        return wrong[i * 10 : i * 10 + len(asked)]

    return assess_model(ZEROS, EMPTY, ask, **{"batch": 10, "fewest": 1, "most": 200, **options})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of the same counts are worked out once."""
    for name in ("confidence_sequence", "clopper_pearson_interval"):
        monkeypatch.setattr(assessment, name, cache(getattr(assessment, name)))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("pmi", [0.02, 0.2])
@pytest.mark.parametrize("ease", [0.5, 0.999, 1.5])
def test_the_bound_holds_whatever_the_stopping(pmi: float, ease: float) -> None:
    """With a requirement just below the truth, labels are bought until the bound is wrong, if it ever is."""
    g = spawn(0, "paths", round(1000 * pmi), round(1000 * ease))
    done = [simulated(pmi, g, requirement=ease * pmi, confidence=0.9) for _ in range(PATHS)]
    wrong = sum(d.upper < pmi for d in done)
    assert wrong <= 0.1 * PATHS + 3 * (0.09 * PATHS) ** 0.5
    assert all(d.labels <= 200 and d.reason for d in done)
    if ease > 1:
        assert sum(d.upper <= ease * pmi for d in done) >= (PATHS // 4 if pmi > 0.05 else 0)
    if ease < 1:
        assert sum(d.labels < 200 for d in done) > PATHS // 2  # in vain, and seen to be


@pytest.mark.usefixtures("quick")
def test_the_last_bound_of_a_campaign_holds_whichever_round_it_ends_with() -> None:
    """Rounds that change nothing, each checked against a requirement just below the truth: the worst that can be."""
    pmi, g, wrong = 0.1, spawn(0, "campaigns"), 0
    for _ in range(300):
        for number in range(3):
            done = simulated(pmi, g, requirement=0.999 * pmi, confidence=confidence_of(number, 0.9))
            if done.upper < pmi:
                wrong += 1
                break
    assert wrong <= 30


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("requirement", [0.05, 0.0999, 0.15, 0.3])
def test_labels_bought_in_two_rounds_say_what_they_say_in_one(requirement: float) -> None:
    """A model that stayed as it was is assessed further: the bound is that of all its labels."""
    for i in range(40):
        wrong = (torch.rand(200, generator=spawn(0, "two", i)) < 0.1).long()

        def ask(start: int, number: int, asked: Samples, wrong: Tensor = wrong) -> Tensor:
            return wrong[start + number * 10 : start + number * 10 + len(asked)]

        options = {"requirement": requirement, "confidence": 0.975, "batch": 10, "fewest": 0}
        first = assess_model(ZEROS[:90], EMPTY[:90], partial(ask, 0), most=90, **options)
        more = partial(ask, first.labels)
        both = assess_model(ZEROS[90:], EMPTY[90:], more, most=200 - first.labels, known=first, **options)
        assert both.before == first.labels
        assert both.failures == int(wrong[: both.labels].sum())
        assert (both.bought == 0) == (both.labels == first.labels)
        if first.upper <= requirement or "confidence" in first.reason:
            assert both.bought == 0
        if first.reason == "this round's labels are spent":
            once = assess_model(ZEROS, EMPTY, partial(ask, 0), most=both.labels, **options)
            assert (once.labels, once.failures, once.upper) == (both.labels, both.failures, both.upper)


@pytest.mark.usefixtures("quick")
def test_no_labels_say_nothing() -> None:
    done = simulated(0.1, spawn(0), requirement=0.1, confidence=0.9, most=0)
    assert (done.labels, done.failures, done.upper, done.reason) == (0, 0, 1.0, "no label is left")


# The folder -----------------------------------------------------------------------------------------------------------


def test_a_finished_campaign_is_read_again(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    asking = Asking(field())
    again = run(tmp_path / "copy", labeller=asking)
    assert asking.asked == []
    assert again.rounds == undisturbed[1].rounds
    assert again.reason == undisturbed[1].reason
    assert same_weights(again.model, undisturbed[1].model)
    assert digest(tmp_path / "copy") == digest(undisturbed[0])


def test_other_settings_are_refused_by_name(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    with pytest.raises(ValueError, match=r"holds a run with other settings: chunk .15 -> 10.; seed .0 -> 1."):
        run(tmp_path / "copy", chunk=10, seed=1)
    with pytest.raises(ValueError, match="holds a run with other settings: finetune"):
        run(tmp_path / "copy", finetune=STUBBORN)
    with pytest.raises(ValueError, match="holds a run with other settings: clean"):
        run(tmp_path / "copy", clean=clean()[1:])
    assert digest(tmp_path / "copy") == digest(undisturbed[0])


@pytest.mark.parametrize(
    "damaged",
    ["round-000/profile.json", "round-000/labels-001.json", "round-001/weights.safetensors", "round-001/round.json"],
)
def test_a_damaged_file_is_named_and_worked_out_again(tmp_path, undisturbed, damaged) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    file = tmp_path / "copy" / damaged
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for _ in range(3):  # what is advised may be a file first, then its round
        told = refused(tmp_path / "copy")
        assert not told or str(file if file.exists() else file.parent) in told
        if told:
            shutil.rmtree(file.parent) if not file.exists() else file.unlink()
    assert digest(tmp_path / "copy") == digest(undisturbed[0])


def refused(folder: Path) -> str:
    """What is said of damage; empty if the campaign came to its end."""
    try:
        run(folder)
    except Damaged as error:
        return str(error)
    return ""


def test_labels_of_other_inputs_are_refused(tmp_path: Path) -> None:
    """Somebody deleted what round 0 began with, and other field inputs have come."""
    with pytest.raises(LabelsMissing):
        run(tmp_path, labeller=Asking(field(), batches=2))
    (tmp_path / "round-000" / "field.json").unlink()
    with pytest.raises(ValueError, match="-000.json in .* is about other inputs"):
        run(tmp_path, Samples.concat([field(100, seed=3), field()]))


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder, and is a file"):
        run(tmp_path / "file")
    if os.name == "posix" and os.geteuid():  # nothing is closed to root
        tmp_path.chmod(0o500)
        with pytest.raises(ValueError, match="make the folder writable|cannot be made"):
            run(tmp_path / "closed")
        tmp_path.chmod(0o700)


@pytest.mark.slow
def test_two_workers_and_one_end_the_same(tmp_path: Path, undisturbed: tuple[Path, CampaignResult]) -> None:
    run(tmp_path, workers=2)
    assert digest(tmp_path) == digest(undisturbed[0])


# Kills ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_campaign_killed_at_chosen_moments_ends_the_same(tmp_path: Path) -> None:
    told = kill(tmp_path, chosen=3, timed=0)
    assert told["kills"] == 3
    assert told["equal"]
    assert told["torn"] == []


@pytest.mark.slow
def test_a_campaign_killed_twenty_times_ends_the_same(tmp_path: Path) -> None:
    told = kill(tmp_path, chosen=10, timed=10)
    assert told["kills"] >= 20
    assert told["inside"] >= 10
    assert told["equal"]
    assert told["torn"] == []


def kill(folder: Path, **counts: int) -> dict[str, Any]:
    """What the script found: it imports torch once, then forks."""
    arguments = [sys.executable, __file__, str(folder), *(str(n) for n in counts.values())]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


INSIDE = ("chunk", "retraining", "writing")
where = mmap.mmap(-1, 16)  # what a run is doing, seen by the process that kills it
left = [10**9]  # moments until a run kills itself


def moment(what: str) -> None:
    where[:] = what.encode().ljust(16)
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)


def around(what: str, call: Callable[..., object]) -> Callable[..., object]:
    """The same, with a moment before and one after."""

    def called(*arguments: object, **options: object) -> object:
        before = bytes(where)
        moment(what)
        result = call(*arguments, **options)
        moment(what)
        where[:] = before
        return result

    return called


def attempt(folder: Path, *, moments: int = 10**9, seconds: float = 0.0) -> str | None:
    """Go on with a campaign in a process of its own: None if it ended, else what it was doing when it was killed."""
    where[:] = b"between".ljust(16)
    if (child := os.fork()) == 0:
        left[0] = moments
        run(folder)
        os._exit(0)
    if seconds:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return bytes(where).decode().strip() if os.WIFSIGNALED(status) else None


def kills(folder: Path, *, chosen: int, timed: int) -> dict[str, object]:
    """Campaigns killed at chosen moments, and others at any time, until there were so many kills."""
    with_moments()
    run(folder / "undisturbed")  # here, so that later ones find all imported
    counted, start = 10**9 - left[0], time.monotonic()
    if timed:
        assert attempt(folder / "timed once") is None
    lasts, choose = time.monotonic() - start, random.Random(0)
    at: list[str] = []
    torn: list[str] = []
    ended: list[str] = []
    for name, n in (("chosen", chosen), ("timed", timed)):
        done = number = 0
        while done < n:
            place = folder / f"{name} {number}"
            if name == "chosen":
                how: dict[str, Any] = {"moments": choose.randrange(counted // max(2, n // 2))}
            else:
                how = {"seconds": choose.uniform(0.01, lasts / 4)}
            if (what := attempt(place, **how)) is None:  # it came to its end; on with another
                number += 1
                ended.append(digest(place))
                continue
            done += 1
            at.append(what)
            torn += [str(file) for file in place.rglob("*.json") if not readable(file)]
        if n and place.exists():
            assert attempt(place) is None
            ended.append(digest(place))
    equal = all(each == digest(folder / "undisturbed") for each in ended)
    left_over = [str(f) for f in folder.rglob(f"*{TEMPORARY}")]
    return {
        "kills": len(at),
        "inside": sum(what in INSIDE for what in at),
        "at": at,
        "campaigns": len(ended),
        "equal": equal,
        "torn": torn + left_over,
        "moments": counted,
    }


def with_moments() -> None:
    """From now on there are moments in chunks, in retraining, in writing and in learning what the field looks like."""
    for name in ("rename", "replace", "link"):
        setattr(os, name, around("writing", getattr(os, name)))
    os.fsync = lambda _: moment("writing")  # what was written outlives a process anyway
    hardening.Fuzzing.__call__ = around("chunk", hardening.Fuzzing.__call__)  # type: ignore[method-assign]
    GradientMove.__call__ = around("chunk", GradientMove.__call__)  # type: ignore[method-assign]
    training.TrainableModel.descend = around("retraining", training.TrainableModel.descend)  # type: ignore[method-assign]
    view.fit_naturalness = around("profile", view.fit_naturalness)
    view.fit_profile = around("profile", view.fit_profile)


def readable(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(kills(Path(sys.argv[1]), chosen=int(sys.argv[2]), timed=int(sys.argv[3]))))
