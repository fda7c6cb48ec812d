"""Laws of `repair`: what a race costs, keeps and says, that it resumes, and that what judges never teaches."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from known_fields import (
    Breaking,
    blobs,
    failures_of,
    field_digits,
    judges,
    known_blobs,
    known_digits,
    lenet8,
    same_weights,
    separator,
    trained_digits,
    weights_of,
)
from operant import Classifier, Samples, spawn
from operant.execution.engines import pool
from operant.retrain import (
    ArmRecord,
    FieldKnowledge,
    FieldTraining,
    OwnTraining,
    Repaired,
    Retrainer,
    Schedule,
    TeachingLabels,
    TrainingDiverged,
    default_arms,
    hold_out_judges,
    interpolate,
    judge_labels,
    repair,
)
from operant.retrain import race as race_module
from operant.retrain._checkpoint import Checkpoint
from operant.retrain.decision import (
    ENOUGH_JUDGES,
    HEAD_START,
    LEAST_SPREAD,
    MIN_FOLDED,
    Entrant,
    clearly_better,
    replaces,
    winner_of,
)
from operant.retrain.field_training import SEGMENTS
from operant.retrain.race import ArmWork, Candidate, Scores, check_candidate
from operant.retrain.repaired import ORIGINAL
from operant.retrain.repairing import MIN_JUDGES
from operant.retrain.training import TrainableModel

MOST = 2.5  # whole trainings that a race costs, at most
SMALL = {"clean_rows": 4, "field_rows": 12, "unlabelled_rows": 6}
BLOB_JUDGES = blobs(80, seed="judges", shift=0.3)
QUICK = Schedule(steps=30, learning_rate=0.01)


def field_arm(**options: Any) -> FieldTraining:
    return FieldTraining(**({"schedule": QUICK} | SMALL | options))


def repaired(model: Classifier, known: FieldKnowledge, seed: int = 0, **options: Any) -> Repaired:
    return repair(model, known, **({"schedule": QUICK} | options), generator=spawn(seed))


def error(model: Classifier, samples: Samples) -> float:
    return 1 - model.accuracy(samples)


def line(at: float, sharpness: float = 1.0) -> Classifier:
    """A network that separates the plane at this value of the first coordinate."""
    network = nn.Linear(2, 2)
    with torch.no_grad():
        network.weight.copy_(sharpness * torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        network.bias.copy_(sharpness * torch.tensor([at, -at]))
    return Classifier(network)


@dataclass(frozen=True, kw_only=True, eq=False)
class Returns:
    """An arm that returns this model, whatever it learns."""

    model: Classifier

    def __call__(self, model: Classifier, known: FieldKnowledge, **options: Any) -> Classifier:
        return self.model


class Moves:
    """An arm that adds to the first bias of the model that it starts from, and keeps what it was given."""

    def __init__(self, by: float) -> None:
        self.by = by
        self.starts: list[Classifier] = []
        self.given: list[FieldKnowledge] = []

    def __call__(self, model: Classifier, known: FieldKnowledge, **options: Any) -> Classifier:
        self.starts.append(model)
        self.given.append(known)
        module = model.unwrap()
        with torch.no_grad():
            module.bias[0] += self.by
        return model.rewrap(module)


@dataclass(frozen=True, kw_only=True)
class Diverges:
    """An arm whose training fails."""

    reason: str = "the loss became nan before step 20"

    def __call__(self, model: Classifier, known: FieldKnowledge, **options: Any) -> Classifier:
        raise TrainingDiverged(self.reason)


def first_bias(model: Classifier) -> float:
    return float(weights_of(model)["bias"][0])


def arm_of(done: Repaired, name: str) -> ArmRecord:
    (found,) = (arm for arm in done.arms if arm.name == name)
    return found


def shown(done: Repaired) -> list[str]:
    """Everything that is said about the arms, but for the time they took."""
    return [str(replace(arm, seconds=0.0)) for arm in done.arms] + [done.kept, done.reason, str(done.mix)]


# Scores


def entrant(name: str, brier: Tensor) -> Entrant:
    scores = Scores(brier=brier, wrong=brier > 0.5)
    candidate = Candidate(name=name, model=separator(), trained=1.0)
    return Entrant(candidate=candidate, model=separator(), mix=1.0, clean=1.0, scores=scores)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([MIN_JUDGES, 25, ENOUGH_JUDGES, 300]),
    arms=st.integers(1, 5),
    spread=st.sampled_from([0.02, 0.1, 0.4]),
)
def test_another_arm_wins_only_if_it_is_clearly_better(seed, n, arms, spread):
    """The oracle is numpy's."""
    stream = spawn(seed)
    common, level = torch.rand(n, generator=stream), 0.1 * torch.rand(arms, generator=stream)
    briers = [
        (common / 2 + level[i] + spread * torch.rand(n, generator=stream)).clamp(0, 1).double() for i in range(arms)
    ]
    entrants = {f"arm {i}": entrant(f"arm {i}", brier) for i, brier in enumerate(briers)}
    values = [brier.numpy() for brier in briers]
    expected, needed = 0, max(1.0, math.sqrt(ENOUGH_JUDGES / n))
    for i in sorted(range(arms), key=lambda i: values[i].mean()):
        apart = values[0] - values[i]
        if i and apart.mean() > needed * max(apart.std(ddof=1), LEAST_SPREAD) / math.sqrt(n):
            expected = i
            break
    won = winner_of(entrants, "arm 0")
    assert won is entrants[f"arm {expected}"]
    assert clearly_better(won.judged, entrants["arm 0"].judged) == (expected > 0)
    last = winner_of(entrants, "an arm that failed")  # then the lowest score decides
    assert last is entrants[f"arm {min(range(arms), key=lambda i: values[i].mean())}"]


def test_without_an_entrant_nobody_wins():
    assert winner_of({}, "arm 0") is None


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(MIN_JUDGES, 200))
def test_the_original_model_is_replaced_unless_judges_find_it_better(seed, n):
    stream = spawn(seed)
    before, after = (torch.rand(n, generator=stream).double() / 4 for _ in range(2))
    a, b = (Scores(brier=brier, wrong=brier > 0.5) for brier in (after, before))
    assert replaces(a, b) == (before.numpy().sum() - after.numpy().sum() > -HEAD_START)
    assert replaces(a, a)
    one_worse = after.clone()
    one_worse[0] = 1.0
    assert not replaces(Scores(brier=one_worse, wrong=one_worse > 0.5), Scores(brier=after * 0, wrong=after > 1))


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 60))
def test_gains_are_paired(seed, n):
    stream = spawn(seed)
    a, b = (torch.rand(n, generator=stream).double() for _ in range(2))
    gain, one = Scores(brier=a, wrong=a > 0).gain_over(Scores(brier=b, wrong=b > 0))
    apart = (b - a).numpy()
    assert gain == pytest.approx(apart.mean())
    assert one == pytest.approx(apart.std(ddof=1) / math.sqrt(n))


def test_one_judge_has_no_standard_error():
    one = Scores(brier=torch.tensor([0.2]), wrong=torch.tensor([False]))
    assert one.gain_over(one) == (0.0, math.inf)


# What a race costs


@pytest.fixture
def steps_taken(monkeypatch) -> list[float]:
    """The learning rate of every step."""
    rates: list[float] = []
    descend = TrainableModel.descend

    def noted(self, loss, *, rate):
        rates.append(rate)
        return descend(self, loss, rate=rate)

    monkeypatch.setattr(TrainableModel, "descend", noted)
    return rates


@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8])
def test_a_race_costs_at_most_two_and_a_half_trainings(n, judged, steps_taken):
    steps = 4 * SEGMENTS
    arms = {f"arm {i}": field_arm(schedule=replace(QUICK, steps=steps, learning_rate=0.01 + i / 1e4)) for i in range(n)}
    done = repaired(separator(), known_blobs(20), arms=arms, judges=BLOB_JUDGES if judged else None)
    assert steps * (min(n, 2) if judged else 1) <= len(steps_taken) <= MOST * steps
    whole = [arm.name for arm in done.arms if arm.trained == 1]
    assert "arm 0" in whole
    assert len(whole) == (min(n, 2) if judged else 1)
    assert all("behind after" in arm.verdict for arm in done.arms if arm.trained < 1)


@pytest.mark.parametrize("default", [0.3, 0.6])
def test_the_finalists_are_the_default_and_the_best_of_the_others(default, monkeypatch):
    """Judged after a part of their training, also if the default is better; arms without steps do not count."""
    known, others = known_blobs(20), {"poor": 0.2, "good": 0.59, "fair": 0.4}
    monkeypatch.setattr(FieldTraining, "__call__", lambda self, *_, **__: line(self.generic, 50.0))
    arms: dict[str, Retrainer] = {"default": field_arm(generic=default)}
    arms |= {name: field_arm(generic=at) for name, at in others.items()} | {"free": Returns(model=line(0.1))}
    x = torch.rand(200, 2, generator=spawn(0))
    done = repaired(line(0.3), known, arms=arms, judges=Samples(x, (x[:, 0] > 0.6).long()), max_drop=1.0)
    assert {arm.name for arm in done.arms if arm.trained == 1} == {"default", "good", "free"}
    assert done.kept == ("good" if default == 0.3 else "default")
    assert [arm.name for arm in done.arms] == list(arms)  # in the order given


# A race of digits


def digit_race(**options: Any) -> Repaired:
    known = known_digits(60)
    return repaired(lenet8(), known, **({"judges": judges(), "schedule": replace(QUICK, steps=45)} | options))


@cache
def finished() -> Repaired:
    return digit_race()


def test_a_race_makes_the_model_better_in_its_field():
    done, model = finished(), lenet8()
    others = field_digits()[60:500]  # whose labels nobody has seen
    assert done.changed
    assert error(done.model, others) < error(model, others)
    assert done.model.accuracy(known_digits().clean) >= model.accuracy(known_digits().clean) - 0.05
    assert done.judges == len(judges())
    assert "below the original's" in done.reason


def test_a_race_prints_a_table_with_a_row_for_each_arm():
    done = finished()
    head, *rows, reason = str(done).splitlines()
    assert head.split()[:4] == ["arm", "trained", "CPU", "s"]
    assert len(rows) == len(done.arms) == len(default_arms(lenet8(), known_digits(60)))
    for row, arm in zip(rows, done.arms, strict=True):
        assert row.startswith(arm.name)
        assert row.endswith(arm.verdict)
    assert reason.lower() == f"{done.reason}.".lower()
    assert "nan" not in str(done)
    assert [arm.name for arm in done.arms if arm.verdict == "kept"] == [done.kept]


def test_the_records_of_arms_are_what_the_judges_say():
    done, sample, before = finished(), judges(), Scores.of(lenet8(), judges())
    for name, model in done.chains.items():
        arm, scores = arm_of(done, name), Scores.of(model, sample)
        assert arm.trained == 1
        assert arm.clean == model.accuracy(known_digits().clean)
        assert arm.brier == pytest.approx(float(scores.brier.mean()))
        assert arm.error == pytest.approx(error(model, sample))
        assert (arm.gain, arm.gain_error) == pytest.approx(scores.gain_over(before))
    left = [arm for arm in done.arms if arm.name not in done.chains]
    assert all(math.isnan(arm.brier) and arm.trained < 1 for arm in left)


def test_nothing_else_moves_and_the_same_generator_gives_the_same_result():
    model, stream = lenet8(), torch.random.get_rng_state()
    before = {name: values.clone() for name, values in weights_of(model).items()}
    again = digit_race()
    assert same_weights(again.model, finished().model)
    assert shown(again) == shown(finished())
    assert torch.equal(stream, torch.random.get_rng_state())
    assert all(torch.equal(values, before[name]) for name, values in weights_of(model).items())
    assert not same_weights(digit_race(seed=1).model, again.model)


def test_two_workers_give_the_same_result_as_one():
    done = digit_race(engine=pool(2))
    assert same_weights(done.model, finished().model)
    assert shown(done) == shown(finished())
    assert done.chains.keys() == finished().chains.keys()
    assert all(same_weights(model, finished().chains[name]) for name, model in done.chains.items())


# Interruptions


class Killed(BaseException):
    pass


def dying(call: Any, at: int, *, after: bool) -> Any:
    """The function, which dies in its call number ``at``, before or after its work."""
    calls = count(1)

    def called(*given: Any) -> None:
        last = next(calls) == at
        if last and not after:
            raise Killed
        call(*given)
        if last:
            raise Killed

    return called


@contextmanager
def killed_in(place: Any, name: str, at: int, *, after: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, dying(getattr(place, name), at, after=after))
        yield


RACES: dict[str, Any] = {
    "with judges": {"known": lambda: known_blobs(20), "judges": BLOB_JUDGES},
    "on folds": {"known": lambda: known_blobs(20), "judges": None},
}


def blob_race(kind: str, folder: Path | None = None) -> Repaired:
    arms = {f"arm {i}": field_arm(information=i / 10) for i in range(4)} | {"free": Returns(model=line(0.6, 5.0))}
    options = RACES[kind]
    return repaired(separator(), options["known"](), arms=arms, judges=options["judges"], folder=folder, max_drop=0.5)


@pytest.mark.parametrize("kind", list(RACES))
@pytest.mark.parametrize(
    ("place", "name", "moments"),
    [(Checkpoint, "write", (1, 5, 8, 20, 33)), (race_module, "save", (1, 2, 3))],
    ids=["after a segment", "as a candidate is kept"],
)
@pytest.mark.parametrize("after", [True, False])
def test_a_race_that_is_killed_ends_as_it_would_have_done(kind, place, name, moments, after, tmp_path):
    """At any moment, also several times: the same weights, table, decision and chains."""
    whole, deaths = blob_race(kind), 0
    for at in moments:
        with killed_in(place, name, at, after=after):
            try:
                blob_race(kind, tmp_path)
            except Killed:
                deaths += 1
    assert deaths > 1
    done = blob_race(kind, tmp_path)
    assert same_weights(done.model, whole.model)
    assert shown(done) == shown(whole)
    assert all(same_weights(model, whole.chains[name]) for name, model in done.chains.items())


class Fades:
    """An arm that resumes where its training was; separates the plane here after this share of it."""

    schedule = QUICK  # so it is trained in parts

    def __init__(self, at: dict[float, float], *, dies: bool = False) -> None:
        self.at, self.dies = at, dies

    def __call__(
        self, model: Classifier, known: FieldKnowledge, *, until: float, checkpoint: Path, **_: Any
    ) -> Classifier:
        reached = float(checkpoint.read_text()) if checkpoint.exists() else 0.0
        for share in self.at:
            if reached < share <= until:
                reached = share
                checkpoint.write_text(str(share))
                if self.dies and share == 0.5:
                    self.dies = False
                    raise Killed
        return line(self.at[reached], 20.0)


def test_a_race_that_resumes_ranks_the_arms_as_they_were(tmp_path):
    """Although the training of a finalist has advanced, to a worse model, since it was chosen."""
    arms = {
        "default": Fades({0.2: 0.5, 1.0: 0.5}),
        "fading": Fades({0.2: 0.75, 0.5: 0.1, 1.0: 0.74}, dies=True),
        "steady": Fades({0.2: 0.6, 1.0: 0.6}),
    }
    options = {"arms": arms, "judges": BLOB_JUDGES, "max_drop": 1.0, "folder": tmp_path}
    with pytest.raises(Killed):
        repaired(line(0.4), known_blobs(20), **options)
    done = repaired(line(0.4), known_blobs(20), **options)
    assert done.kept == "fading"
    assert arm_of(done, "steady").verdict == "behind after 20 % of its training"


def test_a_finished_race_trains_nothing_again(steps_taken, tmp_path):
    first = blob_race("with judges", tmp_path)
    steps_taken.clear()
    assert same_weights(blob_race("with judges", tmp_path).model, first.model)
    assert steps_taken == []


def test_another_race_in_the_same_folder_is_another_race(steps_taken, tmp_path):
    """With other labels or another generator; nothing is read by mistake."""
    first = blob_race("with judges", tmp_path)
    arms = {f"arm {i}": field_arm(information=i / 10) for i in range(2)}
    for other in (
        repaired(separator(), known_blobs(30), arms=arms, judges=BLOB_JUDGES, folder=tmp_path),
        repaired(separator(), known_blobs(20), arms=arms, judges=BLOB_JUDGES, folder=tmp_path, seed=1),
    ):
        assert not same_weights(other.chains["arm 0"], first.chains["arm 0"])


# Candidates that are kept


def work_in(folder: Path, known: FieldKnowledge | None = None) -> ArmWork:
    return ArmWork(known=known_blobs(10) if known is None else known, seed=7, folder=folder)


def test_a_candidate_that_is_kept_is_not_trained_again(tmp_path):
    arm = Moves(0.5)
    item = ("an arm", arm, line(0.5), 1.0)
    first, second = work_in(tmp_path)(item), work_in(tmp_path)(item)
    assert len(arm.given) == 1
    assert same_weights(first.model, second.model)
    assert (first.name, first.trained) == ("an arm", 1.0)
    assert [getattr(first, f.name) for f in fields(first)[2:]] == [getattr(second, f.name) for f in fields(second)[2:]]
    failed = ("another", Diverges(), line(0.5), 1.0)
    assert [work_in(tmp_path)(failed).problem for _ in range(2)] == [Diverges().reason] * 2
    assert work_in(tmp_path)(failed).model is None


def test_names_that_are_alike_as_file_names_are_different_arms(tmp_path):
    names, arm = ("Arm 1", "arm-1"), Moves(0.5)
    assert [work_in(tmp_path)((name, arm, line(0.5), 1.0)).name for name in names] == list(names)


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_weights_that_are_missing_or_changed_are_not_used(damage, tmp_path):
    item = ("an arm", Moves(0.5), line(0.5), 1.0)
    work_in(tmp_path)(item)
    (weights,) = tmp_path.glob("*.weights.safetensors")
    if damage == "removed":
        weights.unlink()
    else:
        save_file({name: values + 1 for name, values in load_file(weights).items()}, weights)
    with pytest.raises(ValueError, match=r"is missing or has changed since it was written; delete .*\.json"):
        work_in(tmp_path)(item)


def test_progress_counts_the_arms(monkeypatch):
    announced: list[tuple[Any, ...]] = []
    advanced: list[int] = []

    class Shown:
        def advance(self) -> None:
            advanced.append(1)

    @contextmanager
    def noted(*what: Any, **options: Any) -> Iterator[Shown]:
        announced.append((*what, options["unit"]))
        yield Shown()

    monkeypatch.setattr(race_module, "activity", noted)
    arms = {name: Returns(model=line(0.5)) for name in ("a", "b", "c")}
    repaired(line(0.5), known_blobs(), arms=arms, judges=BLOB_JUDGES)
    assert announced[0] == ("training arms of the race", 3, "arms")
    assert len(advanced) == 3


# Chains


def moving(amounts: dict[str, float]) -> dict[str, Retrainer]:
    return {name: Moves(by) for name, by in amounts.items()}


def test_arms_continue_from_their_own_candidates():
    """And an arm that was not there before from the original model."""
    model, known = line(0.5), known_blobs(20)
    first = repaired(model, known, arms=moving({"a": 0.1, "b": 0.2}), judges=BLOB_JUDGES, max_drop=1.0)
    later = known.with_labels(TeachingLabels(samples=blobs(20, seed="later")))
    arms = moving({"a": 0.1, "b": 0.2, "c": 0.3})
    second = repaired(model, later, arms=arms, judges=BLOB_JUDGES, previous=first, max_drop=1.0, seed=1)
    moved = {name: first_bias(chain) - first_bias(model) for name, chain in second.chains.items()}
    assert moved == pytest.approx({"a": 0.2, "b": 0.4, "c": 0.3})
    assert set(second.taught.tolist()) == set(later.labels.ids.tolist())


def test_an_arm_that_has_learned_from_an_input_that_judges_now_starts_again():
    """Otherwise it would be judged on what it has learned."""
    model, known = line(0.5), known_blobs(40)
    first = repaired(model, known, arms=moving({"a": 0.1}), judges=BLOB_JUDGES, max_drop=1.0)
    taught = known.labels[:15]
    second = repaired(
        model, known.without(taught.ids), arms=moving({"a": 0.1}), judges=taught, previous=first, max_drop=1.0
    )
    assert first_bias(second.chains["a"]) - first_bias(model) == pytest.approx(0.1)
    assert not bool(torch.isin(taught.ids, second.taught).any())


def test_what_was_not_kept_without_judges_is_forgotten():
    """It is provisional: the next call starts from the original model."""
    model, given_ones = line(0.5), known_blobs()
    first = repaired(model, given_ones, arms=moving({"a": 0.1}))
    assert first.kept == ORIGINAL
    assert first.chains == {}
    assert len(first.taught) == 0
    second = repaired(model, given_ones, arms=moving({"a": 0.1}), judges=BLOB_JUDGES, previous=first, max_drop=1.0)
    assert first_bias(second.chains["a"]) - first_bias(model) == pytest.approx(0.1)


# Judges


def test_judges_teach_nothing():
    """Neither as labels, nor as field or training inputs, nor through failures bred from them."""
    field = known_blobs().field
    some = blobs(120, seed="field", shift=0.3)[40:60]
    suite = failures_of(
        separator(), blobs(120, seed="field", shift=0.3)[30:50], mass=torch.ones(20), naturalness=torch.ones(20)
    )
    train = Samples.concat([blobs(100, seed="train"), some[:3]])
    known = known_blobs(30, train=train, failures=suite)
    arm = Moves(0.1)
    repaired(line(0.5), known, arms={"a": arm}, judges=some)
    (learned,) = arm.given
    assert learned.failures is not None
    for ids in (learned.field.ids, learned.labels.ids, learned.train.ids, learned.failures.seed):
        assert not bool(torch.isin(ids, some.ids).any())
    assert len(learned.field) == len(field) - 20
    assert len(learned.labels) == 30
    assert len(learned.failures) == 10


def test_judges_that_teach_or_are_reserved_are_rejected():
    known = known_blobs(30)
    with pytest.raises(ValueError, match="judges must hold no input of the teaching labels, got 30 of 35"):
        repaired(separator(), known, judges=blobs(120, seed="field", shift=0.3)[:35])
    with pytest.raises(ValueError, match="judges must hold no input of the assessment half, got 2 of 80"):
        repaired(separator(), known_blobs(30, reserved=BLOB_JUDGES.ids[:2]), judges=BLOB_JUDGES)


def test_too_few_judges_decide_nothing():
    few, none = (
        repaired(line(0.5), known_blobs(20), arms=moving({"a": 0.1}), judges=j)
        for j in (BLOB_JUDGES[: MIN_JUDGES - 1], None)
    )
    assert few.judges == none.judges == 0
    assert few.reason == none.reason


@given(n=st.integers(1, 400), chosen=st.integers(0, 60), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_held_out_judges_depend_on_ids_alone(n, chosen, seed):
    """Not on the order or the number of draws; inputs that were chosen never judge."""
    random, others = blobs(n, seed="random", shift=0.3), blobs(chosen, seed="chosen", shift=0.3)
    order = torch.randperm(n, generator=spawn(seed))
    cut = int(torch.randint(n + 1, (), generator=spawn(seed, "cut")))
    draws = [TeachingLabels(samples=others)] if chosen else []

    def held(parts: list[Samples]) -> tuple[FieldKnowledge, set[int]]:
        use = "teaching, judging and estimates"
        more = [TeachingLabels(samples=part, use=use) for part in parts if len(part)]
        known, found = hold_out_judges(known_blobs(taught=(*more, *draws)))
        return known, set() if found is None else set(found.ids.tolist())

    known, found = held([random])
    shuffled = random[order]
    assert held([shuffled[:cut], shuffled[cut:]])[1] == found
    wanted = min(judge_labels(n + chosen), n)
    assert len(found) == (0 if wanted < MIN_JUDGES else wanted)
    assert found <= set(random.ids.tolist())
    assert not found & set(known.labels.ids.tolist())
    assert len(known.labels) == n + chosen - len(found)


@given(budget=st.integers(0, 5000))
def test_judges_are_few_and_none_of_fifty_labels(budget):
    assert 0 <= judge_labels(budget) <= budget / 2
    assert judge_labels(budget) <= judge_labels(budget + 1)
    assert budget > 50 or judge_labels(budget) == 0


# Arms that fail


@pytest.mark.parametrize("first", [True, False])
def test_an_arm_that_diverges_leaves_and_the_race_goes_on(first):
    """One that says so, and one whose rate is too high; also if they come first, where the default arm is."""
    bad: dict[str, Retrainer] = {
        "says so": Diverges(),
        "too fast": field_arm(schedule=replace(QUICK, optimiser="sgd", learning_rate=1e12)),
    }
    good: dict[str, Retrainer] = {"trains": field_arm(schedule=replace(QUICK, steps=60))}
    done = repaired(lenet8(), known_digits(60), arms=bad | good if first else good | bad, judges=judges())
    assert done.kept == "trains"
    assert arm_of(done, "trains").trained == 1
    assert arm_of(done, "says so").verdict == Diverges().reason
    assert re.match(r"the loss became (nan|inf) before step", arm_of(done, "too fast").verdict)
    for name in bad:
        arm = arm_of(done, name)
        assert arm.trained == 0
        assert math.isnan(arm.clean)
        assert name not in done.chains
        assert arm.verdict in str(done)


@pytest.mark.parametrize("judged", [True, False])
def test_a_network_that_breaks_in_training_is_kept_as_it_is(judged):
    """Every arm fails; the message names each and says what would help."""
    model = Classifier(Breaking(3), strict=True)
    arms = {"a": field_arm(), "b": field_arm(information=0.1)}
    done = repaired(model, known_blobs(20), arms=arms, judges=BLOB_JUDGES if judged else None)
    assert done.kept == ORIGINAL
    assert done.model is model
    assert "every arm failed (a: the loss became nan" in done.reason
    assert "Set a lower learning rate" in done.reason


def deeper(module: nn.Module, known: FieldKnowledge, generator: torch.Generator) -> nn.Module:
    return nn.Sequential(*module, nn.Linear(10, 10))


def overflown(module: nn.Module, known: FieldKnowledge, generator: torch.Generator) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.fill_(math.inf)
    return module


def test_networks_that_cannot_be_kept_or_mixed_leave_the_race():
    """Other weights, and statistics that overflowed: outputs are finite, since everything is divided by infinity."""
    model = trained_digits("batch norm")
    arms = {"default": field_arm(), "deeper": OwnTraining(function=deeper), "over": OwnTraining(function=overflown)}
    done = repaired(model, known_digits(20), arms=arms, judges=judges())
    assert "weights of the same names and shapes" in arm_of(done, "deeper").verdict
    assert "training left NaN or infinity in 1.running_var" in arm_of(done, "over").verdict
    assert arm_of(done, "default").trained == 1


def test_a_candidate_with_infinite_outputs_is_rejected():
    with pytest.raises(ValueError, match="NaN or infinite logits"):
        check_candidate(line(0.5, 1e38 * 4), line(0.5), known_blobs().clean)
    check_candidate(line(0.7), line(0.5), known_blobs().clean)


# When nothing is kept


COSTLY = {"costly": Returns(model=line(0.75, 100.0))}  # right in the field, wrong on many clean inputs, in any mix


def test_a_limit_that_nothing_meets_keeps_the_original_and_names_one_that_would_help():
    model, known = line(0.5), known_blobs(20)
    done = repaired(model, known, arms=COSTLY, judges=BLOB_JUDGES, max_drop=0.0)
    assert done.kept == ORIGINAL
    assert done.model is model
    assert arm_of(done, "costly").verdict == "too much clean accuracy lost"
    needed = re.search(
        r"tried costly; the smallest loss of clean accuracy is .*; max_drop=([0-9.]+) allows", done.reason
    )
    assert needed is not None
    limit = float(needed.group(1))
    again = repaired(model, known, arms=COSTLY, judges=BLOB_JUDGES, max_drop=limit)
    assert again.kept == "costly"
    assert again.model.accuracy(known.clean) >= model.accuracy(known.clean) - limit
    assert error(again.model, BLOB_JUDGES) < error(model, BLOB_JUDGES)
    less = repaired(model, known, arms=COSTLY, judges=BLOB_JUDGES, max_drop=limit - 0.02)
    assert less.kept == ORIGINAL


def test_weights_are_mixed_to_keep_clean_accuracy():
    """Half-way between the lines, no clean input is on the wrong side."""
    model, known, candidate = line(0.4, 10.0), known_blobs(20), line(0.75, 10.0)
    done = repaired(model, known, arms={"moved": Returns(model=candidate)}, judges=BLOB_JUDGES, max_drop=0.0)
    assert done.kept == "moved"
    assert 0 < done.mix < 1
    assert same_weights(done.model, interpolate(model, candidate, done.mix))
    assert done.model.accuracy(known.clean) >= model.accuracy(known.clean)
    assert "of the original weights" in done.reason


def test_a_worse_arm_is_not_kept_and_the_message_says_how_near_it_came():
    model, known = line(0.75, 20.0), known_blobs(20)
    arms = {"left": Returns(model=line(0.1, 20.0)), "far left": Returns(model=line(0.0, 20.0))}
    done = repaired(model, known, arms=arms, judges=BLOB_JUDGES, max_drop=1.0)
    assert done.kept == ORIGINAL
    assert done.mix == 0
    assert done.reason.startswith("kept the original model; tried left, far left; the nearest, left")
    assert re.search(r"above its own. \d+ labels, .* may decide it", done.reason)
    nearest = re.search(
        r"left(, mixed with (\d+) % of the original weights)?, has a Brier score ([0-9.]+) ± ([0-9.]+)", done.reason
    )
    assert nearest is not None
    mix = 1 - int(nearest.group(2) or 0) / 100
    scores = Scores.of(interpolate(model, line(0.1, 20.0), mix), BLOB_JUDGES)
    gain, error_of_gain = scores.gain_over(Scores.of(model, BLOB_JUDGES))
    assert [float(nearest.group(i)) for i in (3, 4)] == pytest.approx([-gain, error_of_gain], abs=6e-4)
    assert {arm.verdict for arm in done.arms} == {"not kept"}
    assert set(done.chains) == set(arms)  # they have learned, so more labels may make them better


# Without judges


@pytest.mark.parametrize(("at", "kept"), [(0.75, True), (0.1, False)])
def test_teaching_labels_judge_models_that_did_not_learn_from_them(at, kept):
    model, known = line(0.4, 10.0), known_blobs(MIN_FOLDED)
    arm = Moves(10.0 * (at - 0.4))
    done = repaired(model, known, arms={"a": arm}, max_drop=1.0)
    whole, first, second = (set(k.labels.ids.tolist()) for k in arm.given)
    assert whole == set(known.labels.ids.tolist())
    assert first | second == whole
    assert not first & second
    assert {len(first), len(second)} == {MIN_FOLDED // 2}
    assert (done.kept == "a") == kept
    assert done.judges == 0
    assert "its Brier score on teaching labels that it did not learn from is" in done.reason
    assert ("no judge labels were there to confirm it" in done.reason) == kept
    assert str(done)


class Memorises:
    """An arm that predicts the commonest class of its labels for every input."""

    def __call__(self, model: Classifier, known: FieldKnowledge, **options: Any) -> Classifier:
        return line(2.0 if int(known.labels.labels.mode().values) == 0 else -1.0, 20.0)


def test_an_arm_that_only_knows_its_own_labels_is_not_kept():
    """Every other label is of the same class, so each half of them knows one class."""
    known = known_blobs(20)
    assert len(known.labels.labels[::2].unique()) == len(known.labels.labels[1::2].unique()) == 1
    done = repaired(line(0.4, 10.0), known, arms={"a": Memorises()}, max_drop=1.0)
    assert done.kept == ORIGINAL
    assert re.search(r"did not learn from is [0-9.]+ ± [0-9.]+ higher", done.reason)


def test_models_that_judge_on_folds_start_where_no_label_was_learned():
    """Also in a later call, whose arm continues from a model that has learned from labels of both folds."""
    model, known = line(0.4, 10.0), known_blobs(20)
    first = repaired(model, known, arms={"a": Moves(0.1)}, judges=BLOB_JUDGES, max_drop=1.0)
    arm = Moves(0.1)
    repaired(model, known, arms={"a": arm}, previous=first, max_drop=1.0)
    before, after = first_bias(model), first_bias(first.chains["a"])
    assert [first_bias(start) for start in arm.starts] == pytest.approx([after, before, before])


@pytest.mark.parametrize("labels", [0, MIN_FOLDED - 1])
def test_without_conditions_and_with_few_labels_the_original_is_kept(labels):
    done = repaired(separator(), known_blobs(labels), arms={"a": field_arm()})
    assert done.kept == ORIGINAL
    assert "conditions leave 100 % of the difference between training and field inputs unexplained" in done.reason
    assert "tried a" in done.reason
    assert "labels" in done.reason


@pytest.mark.parametrize("network", ["plain", "batch norm"])
def test_without_labels_and_conditions_at_most_batch_norm_statistics_change(network):
    model = trained_digits(network)
    done = repaired(model, known_digits(recipe=None, unexplained=1.0))
    if network == "plain":
        assert done.kept == ORIGINAL
    assert done.kept == ORIGINAL or done.kept.startswith("batch-norm statistics")
    changed = {name for name, v in weights_of(done.model).items() if not torch.equal(v, weights_of(model)[name])}
    assert all("running" in name for name in changed)


def test_without_labels_simulated_inputs_decide():
    known = known_digits()
    done = repaired(lenet8(), known, schedule=replace(QUICK, steps=60))
    assert re.search(
        r"of \d+ simulated field inputs, [0-9.]+ % before and [0-9.]+ % after are misclassified", done.reason
    )
    worse = repaired(lenet8(), known, arms={"a": Returns(model=trained_digits("plain"))}, max_drop=1.0)
    better = error(trained_digits("plain"), field_digits()) < error(lenet8(), field_digits())
    assert (worse.kept == "a") <= better


# Labels that are few or of one kind


@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize("n", [1, 5, 12])
def test_labels_of_one_class_do_no_harm(n, judged):
    """They help, or the original model stays."""
    model, field, others = lenet8(), field_digits()[:400], field_digits()[450:]
    taught = field[field.labels == 3][:n]
    sample = judges(40) if judged else None
    done = repaired(model, known_digits(taught=(TeachingLabels(samples=taught),)), judges=sample)
    assert done.kept == ORIGINAL or error(done.model, others) <= error(model, others) + 0.01


def test_a_judge_label_of_a_class_that_the_model_lacks_is_rejected():
    wrong = BLOB_JUDGES.with_labels(BLOB_JUDGES.labels + 1)
    with pytest.raises(ValueError, match="labels must be below the model's 2 classes"):
        repaired(separator(), known_blobs(20), judges=wrong)


def test_a_model_of_which_nothing_can_be_trained_is_rejected():
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x[:, 0], 1 - x[:, 0]], 1)

    with pytest.raises(ValueError, match="no trainable parameters"):
        repair(Classifier(Fixed()), known_blobs(20), generator=spawn(0))


@pytest.mark.parametrize(("options", "problem"), [({"max_drop": 5}, "max_drop"), ({"arms": {}}, "arms")])
def test_options_that_mean_nothing_are_rejected(options, problem):
    with pytest.raises(ValueError, match=problem):
        repaired(separator(), known_blobs(20), **options)


# The learning rate


def test_arms_without_a_rate_get_the_same_one():
    arms = {"a": field_arm(schedule=Schedule(steps=5)), "b": field_arm(schedule=Schedule(steps=5), information=0.1)}
    done = repaired(separator(), known_blobs(20), arms=arms, judges=BLOB_JUDGES)
    assert 0 < done.learning_rate < math.inf
    stated = {
        name: replace(arm, schedule=replace(arm.schedule, learning_rate=done.learning_rate))
        for name, arm in arms.items()
    }
    again = repaired(separator(), known_blobs(20), arms=stated, judges=BLOB_JUDGES)
    assert again.learning_rate == done.learning_rate
    assert same_weights(again.model, done.model)
    assert math.isnan(repaired(separator(), known_blobs(20), arms={"a": Returns(model=line(0.5))}).learning_rate)
