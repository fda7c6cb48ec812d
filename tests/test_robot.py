"""Algorithm 1: when it stops, what it learns from, what it rejects, and that a kill at any moment changes nothing.

The toy: two kinds of dots, left and right, separated by one boundary that is too close to the left ones at first.
Run as a script this file is the run that is killed: it imports everything once and forks a process for each attempt.
"""

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, spawn
from operant.assess import Rate, Robustness
from operant.execution import RunFolder, pool
from operant.formatting import percent
from operant.generate import FGSM, PGD, FOLFuzz
from operant.generate.engine import judge
from operant.model import NoGradients
from operant.networks import load_weights
from operant.results import load, save
from operant.retrain import Finetune, FinetuneRecord
from operant.robot import RobOT, RobotResult, RobotRound, _better_before
from operant.select import km_st


def dots(n: int, name: str) -> Samples:
    """Left ones from .15 to .35, right ones from .65 to .85."""
    y = torch.arange(n) % 2
    x = torch.rand(n, 2, dtype=torch.float64, generator=spawn(0, name))
    x[:, 0] = 0.15 + 0.5 * y + 0.2 * x[:, 0]
    return Samples(x, y)


def boundary(at: float, *, dropout: float = 0.0) -> Classifier:
    """Right of ``at`` is right."""
    network = nn.Sequential(nn.Dropout(dropout), nn.Linear(2, 2)).double()
    network[1].weight.data = torch.tensor([[0.0, 0.0], [6.0, 0.0]], dtype=torch.float64)
    network[1].bias.data = torch.tensor([0.0, -6.0 * at], dtype=torch.float64)
    return Classifier(network)


TRAIN = dots(120, "train")
ROLES = {"validation": dots(60, "validation"), "test": dots(80, "test")}
RADIUS = 0.12  # with the boundary in the middle, every dot withstands it
TUNE = Finetune(epochs=4, batch_size=32, learning_rate=0.05, progress=False)
LOOP = RobOT(
    fuzz=FOLFuzz(radius=RADIUS, rows_per_seed=20),
    attacks={"fgsm": FGSM(radius=RADIUS), "pgd": PGD(radius=RADIUS, steps=4)},
    requirement=0.9,
    seeds_per_round=40,
    cases_per_round=30,
    rounds=4,
    max_drop=1.0,
    retrainer=TUNE,
)
ENDLESS = replace(  # no boundary withstands this radius
    LOOP,
    fuzz=FOLFuzz(radius=0.3, rows_per_seed=10, learning_rate=0.4),
    attacks={"pgd": PGD(radius=0.3, steps=2)},
    requirement=1.0,
    rounds=2,
    retrainer=replace(TUNE, epochs=2),
)
QUICK = replace(ENDLESS, fuzz=PGD(radius=0.3, steps=2), value="margin")  # for runs that are repeated many times
NOTHING = "found no failure"


def run(loop: RobOT, folder: Path, *, at: float = 0.3, train: Samples = TRAIN, **options) -> RobotResult:
    model = options.pop("model") if "model" in options else boundary(at)
    return loop(model, train, **{**ROLES, "folder": folder, **options})


def quick(folder: Path, *, rounds: int = 2, **options) -> RobotResult:
    return run(replace(QUICK, rounds=rounds), folder, model=boundary(0.4, dropout=0.1), **options)


def weights(model: Classifier) -> dict[str, Tensor]:
    return dict(model.unwrap().state_dict())


def same_weights(a: Classifier, b: Classifier) -> bool:
    x, y = weights(a), weights(b)
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> RobotResult:
    """Two rounds, each of which changed the weights."""
    folder = tmp_path_factory.mktemp("robot") / "undisturbed"
    hardened = quick(folder)
    assert [r.number for r in hardened.rounds] == [0, 1, 2]
    assert all(r.chosen and r.retraining and r.retraining.best_epoch for r in hardened.rounds[1:])
    assert same_weights(hardened.model, of_round(folder, 2))
    assert not same_weights(of_round(folder, 1), of_round(folder, 2))
    return hardened


def of_round(folder: Path, number: int) -> Classifier:
    file = folder / f"round-{number:03d}" / "weights.safetensors"
    return Classifier(load_weights(boundary(0.4, dropout=0.1).unwrap(), file))


# When it stops


def test_a_model_that_meets_the_requirement_is_left_alone(tmp_path):
    model = boundary(0.5)
    hardened = run(LOOP, tmp_path, model=model)
    assert hardened.met
    assert [r.number for r in hardened.rounds] == [0]
    assert hardened.rounds[0].robustness.value == 1.0
    assert hardened.rounds[0].retraining is None
    assert hardened.model is model
    assert str(hardened).startswith("The requirement was met after round 0: adaptive robustness 100 %, required 90 %")


@pytest.mark.parametrize("mode", ["adaptive", "static"])
def test_it_stops_as_soon_as_the_requirement_is_met(tmp_path, mode):
    hardened = run(replace(LOOP, mode=mode), tmp_path)
    values = [r.robustness.value for r in hardened.rounds]
    assert hardened.met
    assert len(values) > 1
    assert max(values[:-1]) < 0.9 <= values[-1]
    assert f"met after round {len(values) - 1}: {mode} robustness" in hardened.reason


@pytest.mark.parametrize(("requirement", "at"), [(0, 0.3), (1, 0.5)])
def test_a_requirement_that_is_just_reached_is_met(tmp_path, requirement, at):
    hardened = run(replace(LOOP, requirement=requirement), tmp_path, at=at)
    assert hardened.met
    assert len(hardened.rounds) == 1


@pytest.mark.parametrize("rounds", [1, 2])
def test_it_stops_when_the_budget_is_spent(tmp_path, rounds):
    hardened = run(replace(ENDLESS, rounds=rounds), tmp_path)
    assert not hardened.met
    assert len(hardened.rounds) == rounds + 1
    assert hardened.reason.startswith(f"The budget is spent after round {rounds}: adaptive robustness ")


def robust(number: int, k: int, *, changed: bool = True) -> RobotRound:
    rate = Rate(name="all", k=k, n=10, lower=0.0, upper=1.0)
    robustness = Robustness(mode="adaptive", confidence=0.95, clean=rate, adaptive=(rate,), static=None)
    record = FinetuneRecord(
        best_epoch=int(changed), reason="", n_train=9, n_cases=9, accuracy_before=1.0, history=(), monitor_before=None,
        train_rows=9, case_rows=9, effective_cases=9.0, stopped_early=False,
    )  # fmt: skip
    return RobotRound(number=number, retraining=record if number else None, robustness=robustness)


@pytest.mark.parametrize(
    ("ks", "changed", "named"),
    [
        ((1, 5, 3), (True, True, True), ". The model after round 1 was the most robust, 50 %: its weights are in "),
        ((1, 4, 5, 3), (True, True, False, True), "round 2 was the most robust, 50 %: its weights are in round-001/w"),
        ((5, 1), (True, True), "round 0 was the most robust, 50 %: it is the initial model"),
        ((1, 3, 5), (True, True, True), ""),
    ],
)
def test_an_earlier_more_robust_model_is_named(ks, changed, named):
    text = _better_before([robust(i, k, changed=c) for i, (k, c) in enumerate(zip(ks, changed, strict=True))])
    assert named in text
    assert bool(text) == bool(named)


def test_both_kinds_of_robustness_are_recorded_in_every_round(undisturbed):
    for r in undisturbed.rounds:
        assert [(rate.name, rate.n) for rate in r.robustness.adaptive] == [("pgd", 80), ("all", 80)]  # the test samples
        assert r.robustness.static is not None
        assert [rate.name for rate in r.robustness.static] == ["pgd", "all"]
    assert undisturbed.rounds[0].robustness.static[-1].value == 0  # by construction
    lines = str(undisturbed).splitlines()
    assert len(lines) == 2 + len(undisturbed.rounds)
    for line, r in zip(lines[2:], undisturbed.rounds, strict=True):
        rate = r.robustness.static[-1]
        assert line.endswith(f"{percent(rate.value)} [{percent(rate.lower):>6}, {percent(rate.upper):>6}]")
        assert f"{percent(r.robustness.adaptive[-1].value):>6} [" in line


def test_every_round_is_printed(tmp_path, undisturbed):
    console = Console(record=True, width=40, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    quick(tmp_path, console=console)
    lines = console.export_text().splitlines()
    console.file.close()
    assert [line.split(":")[0] for line in lines] == [f"round {r.number}" for r in undisturbed.rounds]
    assert f"{undisturbed.rounds[1].found} failures from {undisturbed.rounds[1].attempted} seeds" in lines[1]


# Models that no search can break


class Same(nn.Module):
    """Almost the same answer for every input; its gradient is the slope, or there is none."""

    def __init__(self, *, gradient: bool, slope: float = 0.0) -> None:
        super().__init__()
        self.slope = slope
        self.answer, self.gradient = nn.Parameter(torch.tensor([1.0, 0.0], dtype=torch.float64)), gradient

    def forward(self, x: Tensor) -> Tensor:
        return self.answer + self.slope * x if self.gradient else self.answer.expand(len(x), 2)


class Rounded(nn.Module):
    """Steps: no gradient shows where the boundary is, though there is one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([1 - x[:, 0].round(), x[:, 0].round()], 1) + 0 * x


@pytest.mark.parametrize(
    ("module", "attack"),
    [
        (Same(gradient=True), PGD(radius=0.3)),
        (Same(gradient=False), FOLFuzz(radius=0.3, rows_per_seed=5)),
        (Same(gradient=False), PGD(radius=0.3)),
        (Rounded(), PGD(radius=0.3)),
    ],
    ids=["zero gradient", "no gradient", "no gradient for PGD", "steps"],
)
def test_models_without_gradients_are_refused(tmp_path, module, attack):
    """Their searches would find nothing, however easy the model is to break."""
    with pytest.raises(NoGradients, match="the module has none"):
        run(replace(ENDLESS, attacks={"attack": attack}), tmp_path, model=Classifier(module))


def test_the_loop_ends_for_a_model_that_hardly_varies(tmp_path):
    model, loop = Classifier(Same(gradient=True, slope=1e-9)), replace(ENDLESS, attacks={"attack": PGD(radius=0.3)})
    hardened = run(loop, tmp_path, model=model)
    assert not hardened.met
    assert f"Round 1 {NOTHING}" in hardened.reason
    assert [(r.found, r.chosen, r.retraining) for r in hardened.rounds] == [(0, 0, None)] * 2
    assert all(r.robustness.value == 0.5 and r.robustness.static is None for r in hardened.rounds)
    assert hardened.model is model
    assert [line[-1] for line in str(hardened).splitlines()[2:4]] == ["-", "-"]
    assert "Static robustness is not measured" in str(hardened)
    again = run(loop, tmp_path, model=model)
    assert again.rounds == hardened.rounds


def test_static_robustness_needs_an_attack_that_succeeds(tmp_path):
    with pytest.raises(ValueError, match="no attack on the validation samples succeeds.*stronger attacks, or mode"):
        run(replace(LOOP, mode="static"), tmp_path / "old", at=0.5)
    assert run(LOOP, tmp_path / "new", at=0.5).met


# What it learns from


@dataclass(frozen=True, kw_only=True)
class Watched(Finetune):
    """Keeps what it was given."""

    calls: list = field(default_factory=list, repr=False, compare=False)

    def __call__(self, model, train, cases, **others):
        self.calls.append((others["max_drop"], model, train, cases, others["validation"]))
        return super().__call__(model, train, cases, **others)


class Remembering:
    """A fuzzer that remembers its seeds and what it found."""

    def __init__(self, fuzz):
        self.fuzz, self.seeds, self.found = fuzz, [], []

    def __call__(self, model, samples, *, generator):
        self.seeds.append(samples.ids)
        self.found.append(self.fuzz(model, samples, generator=generator))
        return self.found[-1]


def test_cases_accumulate_and_neither_validation_nor_test_inputs_are_learned_from(tmp_path):
    watched, fuzz = Watched(**vars(ENDLESS.retrainer)), Remembering(ENDLESS.fuzz)
    hardened = run(replace(ENDLESS, fuzz=fuzz, retrainer=watched), tmp_path)
    kept = [Suite.open(tmp_path / f"round-{k:03d}" / "cases") for k in (1, 2)]
    judged = torch.cat([samples.ids for samples in ROLES.values()])
    for k, (_, _, train, cases, validation) in enumerate(watched.calls, 1):
        assert torch.equal(cases.x, torch.cat([suite.x for suite in kept[:k]]))
        assert len(cases) == hardened.rounds[k].cases == sum(r.chosen for r in hardened.rounds[: k + 1])
        assert torch.equal(train.ids, TRAIN.ids)
        assert torch.equal(validation.ids, ROLES["validation"].ids)
        assert not torch.isin(torch.cat([train.ids, cases.ids, fuzz.seeds[k - 1]]), judged).any()
        assert torch.isin(kept[k - 1].seed, TRAIN.ids).all()
        assert (kept[k - 1].prediction != kept[k - 1].label).all()
    assert len(watched.calls) == 2
    assert len(torch.cat(fuzz.seeds).unique()) == len(torch.cat(fuzz.seeds))  # other seeds in each round


def test_seeds_are_reused_after_all_were_used(tmp_path):
    fuzz = Remembering(ENDLESS.attacks["pgd"])
    fixed = replace(TUNE, learning_rate=1e-9)  # all seeds stay correct
    run(replace(ENDLESS, fuzz=fuzz, value="margin", seeds_per_round=80, rounds=3, retrainer=fixed), tmp_path, at=0.5)
    seen = fuzz.seeds
    assert [len(ids) for ids in seen] == [80, 80, 80]
    assert torch.equal(torch.cat(seen)[:120].sort().values, TRAIN.ids.sort().values)
    assert torch.equal(torch.cat(seen)[:120], torch.cat(seen)[120:])


def test_a_round_counts_what_it_found(tmp_path):
    fuzz = Remembering(ENDLESS.fuzz)
    hardened = run(replace(ENDLESS, fuzz=fuzz, cases_per_round=10), tmp_path)
    for suite, done in zip(fuzz.found, hardened.rounds[1:], strict=True):
        assert (done.found, done.attempted, done.chosen) == (len(suite), suite.attempted, 10)
        assert done.broken == len(set(suite.seed.tolist()))
        assert sum(done.branches.values()) == len(suite)
        assert set(done.branches) == set(suite["branch"].tolist())


def to_the_right(model, seeds, *, generator):
    """Moves left dots far to the right, where learning from them costs accuracy."""
    left = (seeds.labels == 0).nonzero().flatten()
    x = seeds.x[left] + torch.tensor([0.45, 0.0], dtype=torch.float64)
    return judge(model, seeds, x, origin=left, method="to-the-right")


@pytest.mark.parametrize("max_drop", [0.0, 0.1])
def test_max_drop_holds_over_all_rounds_together(tmp_path, max_drop):
    watched = Watched(epochs=8, batch_size=32, learning_rate=0.05, progress=False)
    options = {"value": "margin", "rounds": 4, "max_drop": max_drop, "retrainer": watched}
    loop = replace(ENDLESS, fuzz=to_the_right, attacks={"shift": to_the_right}, **options)
    hardened = run(loop, tmp_path, at=0.5)
    floor = 1 - max_drop - 1e-6  # it was right about all
    below = 0
    for left, model, *_, validation in watched.calls:
        accuracy = float((model.predict(validation.x) == validation.labels).double().mean())
        assert left == pytest.approx(accuracy - (1 - max_drop))
    for done in hardened.rounds[1:]:
        history = done.retraining.history
        below += sum(epoch.accuracy < floor for epoch in history)
        if done.retraining.best_epoch:
            assert history[done.retraining.best_epoch - 1].accuracy >= floor
    assert below > 3  # or there was nothing to guard against
    final = hardened.model.predict(ROLES["validation"].x) == ROLES["validation"].labels
    assert float(final.double().mean()) >= floor


def test_cases_can_be_chosen_in_another_way(tmp_path):
    first, second = (
        run(replace(ENDLESS, select=select, cases_per_round=8, rounds=1), tmp_path / str(k))
        for k, select in enumerate([ENDLESS.select, partial(km_st, k=4)])
    )
    assert first.rounds[1].found == second.rounds[1].found
    digests = {Suite.open(tmp_path / str(k) / "round-001" / "cases").digest() for k in (0, 1)}
    assert len(digests) == 2


# Same seed, same rounds


def test_same_seed_same_rounds(tmp_path, undisturbed):
    again = quick(tmp_path)
    assert again.rounds == undisturbed.rounds
    assert same_weights(again.model, undisturbed.model)


@pytest.mark.slow
def test_two_workers_and_one_end_the_same(tmp_path):
    """Also what is judged in chunks: attacks on test samples, and after every epoch on validation samples."""
    digests = set()
    for workers in (1, 2):
        loop = replace(QUICK, chunk=17, rounds=1)
        run(replace(loop, engine=pool(workers)), tmp_path / f"{workers}", model=boundary(0.4, dropout=0.1))
        with RunFolder(tmp_path / f"{workers}") as folder:
            digests.add(folder.digest())
    assert len(digests) == 1


def test_chunks_of_the_judge_are_kept_only_until_it_has_judged(tmp_path):
    quick(tmp_path)
    assert sorted(p.name for p in (tmp_path / "round-001").iterdir() if p.name.startswith("judged")) == []
    assert (tmp_path / "round-000" / "static-test-0" / "chunk-0000").exists()


def test_another_seed_gives_other_cases(tmp_path):
    for seed in (0, 1):
        run(replace(ENDLESS, rounds=1), tmp_path / str(seed), seed=seed)
    a, b = (Suite.open(tmp_path / str(seed) / "round-001" / "cases") for seed in (0, 1))
    assert a.digest() != b.digest()
    assert a.seed.tolist() != b.seed.tolist()


def test_rounds_come_back_from_disk(tmp_path, undisturbed):
    for k, done in enumerate(undisturbed.rounds):
        save(done, tmp_path / f"{k}.json")
        assert load(tmp_path / f"{k}.json", RobotRound) == done


def test_the_model_and_random_state_that_came_stay_as_they_are(tmp_path):
    model = boundary(0.3)
    before, state = {name: v.clone() for name, v in weights(model).items()}, torch.random.get_rng_state()
    hardened = run(LOOP, tmp_path, model=model)
    assert all(torch.equal(before[name], v) for name, v in weights(model).items())
    assert not same_weights(hardened.model, model)
    assert torch.equal(state, torch.random.get_rng_state())


# What it rejects


@pytest.mark.parametrize("requirement", [-0.01, 1.01, 80, float("nan")])
def test_a_requirement_outside_0_to_1_is_rejected(requirement):
    with pytest.raises(ValueError, match=f"requirement must be a share from 0 to 1, got {requirement}"):
        replace(LOOP, requirement=requirement)


@pytest.mark.parametrize("name", ["seeds_per_round", "cases_per_round", "rounds"])
def test_a_number_below_1_is_rejected(name):
    with pytest.raises(ValueError, match=f"{name}.* must be at least 1, got .*0"):
        replace(LOOP, **{name: 0})


def test_an_unknown_mode_is_rejected():
    with pytest.raises(ValueError, match='mode must be "adaptive" or "static", got \'both\''):
        replace(LOOP, mode="both")


def test_attacks_must_be_given(tmp_path):
    with pytest.raises(ValueError, match="attacks must be fuzzers by name, at least one"):
        run(replace(LOOP, attacks={}), tmp_path)


@pytest.mark.parametrize("role", ["train", "validation", "test"])
def test_a_role_without_samples_is_rejected(tmp_path, role):
    with pytest.raises(ValueError, match=f"there are no {role} samples; give at least one"):
        run(LOOP, tmp_path / "new", **{role: TRAIN[:0]})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("a", "b"), [("train", "validation"), ("train", "test"), ("validation", "test")])
def test_roles_that_share_inputs_are_rejected(tmp_path, a, b):
    roles = {"train": TRAIN, **ROLES}
    roles[b] = Samples.concat([roles[b], roles[a][:3]])
    n = len(roles[b])
    with pytest.raises(ValueError, match=f"{a} and {b} must not share inputs, got 3 of {n} in both; split by id"):
        run(LOOP, tmp_path, **roles)


@pytest.mark.parametrize("role", ["validation", "test"])
def test_samples_that_are_all_misclassified_are_rejected(tmp_path, role):
    wrong = Samples(ROLES[role].x, 1 - ROLES[role].labels)
    with pytest.raises(
        ValueError, match=rf"none of the {len(wrong)} {role} samples correctly; check labels.*doctor\(\)"
    ):
        run(LOOP, tmp_path, at=0.5, **{role: wrong})
    assert run(LOOP, tmp_path, at=0.5).met  # the folder is still free


def test_seeds_that_are_all_misclassified_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"none of the 40 seeds of round 1 correctly; check labels.*doctor\(\)"):
        run(ENDLESS, tmp_path, at=0.5, train=Samples(TRAIN.x, 1 - TRAIN.labels))


def test_a_column_that_the_fuzzer_does_not_give_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="by the column fol, but the fuzzer gives margin; name one of these as value"):
        run(replace(LOOP, fuzz=PGD(radius=RADIUS)), tmp_path)
    assert run(replace(LOOP, fuzz=PGD(radius=RADIUS), value="margin"), tmp_path / "new").rounds[1].branches == {}


# A folder of another run


@pytest.fixture(scope="module")
def one_round(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("robot") / "one round"
    run(replace(ENDLESS, rounds=1), folder)
    return folder


@pytest.fixture
def begun(tmp_path, one_round) -> Path:
    """A folder of one finished round, to spoil."""
    return Path(shutil.copytree(one_round, tmp_path / "begun"))


@pytest.mark.parametrize(
    ("loop", "options", "changed"),
    [
        ({}, {"seed": 1}, "seed"),
        ({}, {"at": 0.31}, "model"),
        ({}, {"model": Classifier(boundary(0.3).unwrap(), bounds=(0, 2))}, "model"),
        ({}, {"model": Classifier(nn.Sequential(*boundary(0.3).unwrap(), nn.Tanh()))}, "model"),
        ({"fuzz": FOLFuzz(radius=0.29)}, {}, "fuzz"),
        ({"attacks": {"pgd": PGD(radius=0.3, steps=3)}}, {}, "attacks"),
        ({"mode": "static"}, {}, "mode"),
        ({"value": "loss"}, {}, "value"),
        ({"select": km_st}, {}, "select"),
        ({"seeds_per_round": 41}, {}, "seeds_per_round"),
        ({"cases_per_round": 31}, {"seed": 1}, r"cases_per_round \(30 -> 31\); seed"),
        ({"retrainer": replace(TUNE, epochs=3)}, {}, "retrainer"),
        ({}, {"train": TRAIN[:-1]}, "train"),
        ({}, {"validation": ROLES["validation"][1:]}, "validation"),
        ({}, {"test": replace(ROLES["test"], y=1 - ROLES["test"].labels)}, "test"),
    ],
)
def test_a_folder_of_another_run_is_rejected_and_what_differs_is_named(begun, loop, options, changed):
    with pytest.raises(
        ValueError, match=f"{begun} contains a run with other settings: {changed} .*choose a new folder"
    ):
        run(replace(ENDLESS, **loop), begun, **options)


def test_when_to_stop_may_change_and_what_is_finished_counts(begun):
    before = run(replace(ENDLESS, rounds=1), begun)
    assert run(replace(ENDLESS, rounds=1, requirement=0.999), begun).rounds == before.rounds
    further = run(replace(ENDLESS, rounds=2), begun)
    fewer = run(replace(ENDLESS, rounds=1), begun)
    assert fewer.rounds == further.rounds, "finished rounds are not taken back"


def test_a_bigger_budget_continues_a_smaller_one(tmp_path, undisturbed):
    assert quick(tmp_path, rounds=1).rounds == undisturbed.rounds[:2]
    whole = quick(tmp_path)
    assert whole.rounds == undisturbed.rounds
    assert same_weights(whole.model, undisturbed.model)
    assert quick(tmp_path, rounds=1).rounds == undisturbed.rounds  # finished rounds are not taken back


def test_a_progress_bar_makes_no_other_run(begun):
    loud = replace(ENDLESS, rounds=1, retrainer=replace(ENDLESS.retrainer, progress=True))
    assert len(run(loud, begun).rounds) == 2


def test_a_finished_run_is_only_read(tmp_path, undisturbed):
    quick(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.name != "timing.jsonl"}
    again = quick(tmp_path)
    assert again.rounds == undisturbed.rounds
    assert same_weights(again.model, undisturbed.model)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.name != "timing.jsonl"} == before


# A damaged folder


@pytest.mark.parametrize("content", ["", "{", "null", "[1]", "7", "\N{SNOWMAN}"])
def test_a_damaged_record_of_the_run_is_rejected(begun, content):
    (begun / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run.json is damaged; delete it and run again"):
        run(ENDLESS, begun)
    (begun / "run.json").unlink()
    assert len(run(replace(ENDLESS, rounds=1), begun).rounds) == 2


def test_rounds_of_an_unknown_run_are_rejected(begun):
    (begun / "run.json").unlink()
    with pytest.raises(ValueError, match=r"round-000/.* was made with other settings; delete it"):
        run(ENDLESS, begun, seed=1)


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def as_another_type(file: Path) -> None:
    page = json.loads(file.read_text())
    page["value"]["robustness"]["clean"]["k"] = "many"
    file.write_text(json.dumps(page))


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (torn, "round.json"),
        (as_another_type, "round.json"),
        (torn, "weights.safetensors"),
        (Path.unlink, "weights.safetensors"),
        (torn, "cases/shard-000000.safetensors"),
        (Path.unlink, "cases/shard-000000.safetensors"),
        (Path.unlink, "cases/manifest.json"),
    ],
)
def test_a_damaged_round_is_rejected_and_computed_again_once_deleted(begun, damage, file):
    place = begun / "round-001"
    before = load(place / "round.json", RobotRound)
    damage(place / file)
    with pytest.raises(ValueError, match=r"a finished .*(cannot be read|missing).*round-001.*delete .* to compute it"):
        run(ENDLESS, begun)
    shutil.rmtree(place)
    assert run(replace(ENDLESS, rounds=1), begun).rounds[1] == before


# Kill and resume


class Killed(BaseException):
    """Nothing catches it."""


@pytest.mark.slow
def test_an_end_at_any_writing_point_changes_nothing(tmp_path, monkeypatch, undisturbed):
    """Every file is flushed before it gets its name, and its folder after: the run ends at each of these in turn."""
    flush, left = os.fsync, [0]

    def counted(descriptor: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    quick(tmp_path / "counted")
    points = -left[0]
    assert points >= 2 * (1 + 1 + 2 * 4)  # run, round 0, and two rounds of manifest, shard, weights, round; and seals
    for point in range(1, points + 1):
        folder, left[0] = tmp_path / str(point), point
        with pytest.raises(Killed):
            quick(folder)
        left[0] = 0
        resumed = quick(folder)
        assert resumed.rounds == undisturbed.rounds
        assert same_weights(resumed.model, undisturbed.model)


KILLS = 7


def fork_runs(folder: Path) -> None:
    """One run per line on the standard input, one after the other; they print when they flush and retrain."""
    flush, learn = os.fsync, Finetune.__call__

    def flush_aloud(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        print(f"flushing {kind}", flush=True)
        flush(descriptor)

    def learn_aloud(*inputs, **options):
        print("learning", flush=True)
        return learn(*inputs, **options)

    with tempfile.TemporaryDirectory() as elsewhere:
        quick(Path(elsewhere))  # torch imports much when it first learns: once here, instead of in every run
    os.fsync, Finetune.__call__ = flush_aloud, learn_aloud
    for _ in sys.stdin:
        if (child := os.fork()) == 0:
            print(f"run {os.getpid()}", flush=True)
            quick(folder)
            print("finished", flush=True)
            signal.pause()  # whoever started it ends it
        os.waitpid(child, 0)
        print("gone", flush=True)


def attempt(server: "subprocess.Popen[str]", nth: int, delay: float) -> list[str]:
    """Start a run, kill it ``delay`` seconds after its nth line of output or its end; returns its output."""
    assert server.stdin is not None
    assert server.stdout is not None
    print("go", file=server.stdin, flush=True)
    lines = map(str.strip, server.stdout)
    pid = int(next(lines).removeprefix("run "))
    printed = [""]
    while len(printed) <= nth and printed[-1] != "finished":
        printed.append(next(lines))
        assert printed[-1] != "gone", "the run must not stop by itself"
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    return printed + list(iter(lines.__next__, "gone"))


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_rounds_and_weights(tmp_path, undisturbed):
    chance, folder, interrupted = random.Random(4), tmp_path / "killed", 0
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        for _ in range(KILLS):
            printed = attempt(server, chance.randint(1, 12), chance.choice([0, 0.01, 0.05]) * chance.random())
            interrupted += "finished" not in printed
        assert attempt(server, 1000, 0)[-1] == "finished"
        server.communicate()
    assert server.returncode == 0
    assert interrupted > 1  # or the moments were not chosen well
    resumed = quick(folder)
    assert resumed.rounds == undisturbed.rounds
    assert same_weights(resumed.model, undisturbed.model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_runs(Path(sys.argv[1]))
