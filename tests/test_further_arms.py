"""Arms that race only if asked for: each trains, and the command knows them by name."""

import pytest
import torch
from typer.testing import CliRunner

from known_fields import failures_of, judges, known_digits, lenet8, parts, same_weights
from operant import Classifier, spawn
from operant.cli import app
from operant.networks import LeNet5, fit, initialise
from operant.retrain import Schedule, further_arms, repair
from operant.retrain.default_arms import FAILURES_ALONE, FURTHER, PATTERNS, default_arms

QUICK = Schedule(steps=15, learning_rate=1e-3)


def with_dropout() -> Classifier:
    start = initialise(lambda: LeNet5(size=8, dropout=0.2, dropout_after=("fc1",)), generator=spawn(0, "weights"))
    return Classifier(fit(start, parts()["train"], epochs=5, generator=spawn(0), progress=False).module)


def known(**options):
    seeds = parts()["train"][:30]
    ones = torch.ones(30, dtype=torch.float64)
    return known_digits(**({"failures": failures_of(lenet8(), seeds, mass=ones, naturalness=ones)} | options))


@pytest.mark.parametrize("name", [name for name in FURTHER if name != PATTERNS])
def test_each_further_arm_trains_and_repeats_itself(name):
    arm = further_arms(lenet8(), QUICK)[name]
    first, second = (arm(lenet8(), known(), generator=spawn(3)) for _ in range(2))
    assert same_weights(first, second)
    assert not same_weights(first, lenet8())


def test_uncertainty_patterns_are_learned_from_with_mixtures_inside_the_network():
    model = with_dropout()
    arm = further_arms(model, QUICK)[PATTERNS]
    assert len(arm.retrainer.loss.layers) == 3
    assert arm.retrainer.loss.layers[0] == "input"
    learned = arm(model, known(), generator=spawn(3))
    assert not same_weights(learned, model)


def test_further_arms_race_beside_the_default_ones():
    data = known(taught=known_digits(60).taught)
    arms = default_arms(lenet8(), data, QUICK) | {FAILURES_ALONE: further_arms(lenet8(), QUICK)[FAILURES_ALONE]}
    done = repair(lenet8(), data, judges=judges(), arms=arms, generator=spawn(1))
    found = {arm.name: arm for arm in done.arms}
    assert found[FAILURES_ALONE].trained == 1
    assert found[FAILURES_ALONE].brier > 0


def test_without_failures_the_arm_that_needs_them_leaves_the_race():
    data = known(failures=None, taught=known_digits(60).taught)
    arms = default_arms(lenet8(), data, QUICK) | {FAILURES_ALONE: further_arms(lenet8(), QUICK)[FAILURES_ALONE]}
    done = repair(lenet8(), data, judges=judges(), arms=arms, generator=spawn(1))
    assert "no cases to learn from" in next(arm.verdict for arm in done.arms if arm.name == FAILURES_ALONE)
    assert done.changed


def test_the_command_names_the_arms_that_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["repair", "--arm", "failures only"])
    assert done.exit_code == 2
    assert all(name in " ".join(done.output.split()) for name in ("no arm named failures only", *FURTHER))
