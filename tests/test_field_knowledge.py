"""What is known about a field: what may be learned from, what is rejected, and when two are the same."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from known_fields import CONDITIONS, blobs, failures_of, known_blobs, known_digits, separator
from operant import Classifier, Samples
from operant.model.hashing import described
from operant.profile import FittedConditions
from operant.retrain import FieldKnowledge, TeachingLabels, known_field

FIELD = blobs(120, seed="field", shift=0.3)
TRAIN, CLEAN = blobs(100, seed="train"), blobs(60, seed="clean")
OTHER = blobs(40, seed="other", shift=0.3)


def failing(seeds: Samples = OTHER):
    n = len(seeds)
    return failures_of(separator(), seeds, mass=torch.arange(1, n + 1) / n, naturalness=torch.linspace(0.1, 1, n))


def fitted(unexplained: float) -> FittedConditions:
    """Conditions that leave this share of the difference."""
    values = {"parameters": (), "before": 10.0, "after": 10.0 * unexplained, "floor": 0.0, "floor_high": 0.0}
    return FittedConditions(recipe=CONDITIONS, priors=(), confidence=0.95, findings=(), **values)


# Inputs of the assessment half


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"field": OTHER}, "field"),
        ({"train": OTHER}, "train"),
        ({"taught": (TeachingLabels(samples=FIELD[:5]), TeachingLabels(samples=OTHER))}, r"taught\[1\]"),
        ({"failures": failing()}, "the seeds of failures"),
    ],
)
def test_inputs_of_the_assessment_half_are_rejected_wherever_they_are(part, name):
    with pytest.raises(ValueError, match=f"{name} must hold no input of the assessment half, got 3 of 40"):
        known_blobs(**part, reserved=OTHER.ids[[0, 7, 12]])


def test_failures_that_are_inputs_of_the_assessment_half_are_rejected():
    suite = failing()
    with pytest.raises(ValueError, match="failures must hold no input of the assessment half, got 2 of 40"):
        known_blobs(failures=suite, reserved=suite.samples().ids[:2])


def test_later_labels_of_the_assessment_half_are_rejected_too():
    known = known_blobs(reserved=OTHER.ids)
    with pytest.raises(ValueError, match="assessment half"):
        known.with_labels(TeachingLabels(samples=OTHER[:1]))
    assert len(known_blobs(reserved=OTHER.ids, failures=failing(FIELD)).field) == len(FIELD)  # others are accepted


# Clean inputs, labels, and other arguments


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"train": Samples.concat([TRAIN, CLEAN[:2]])}, "train"),
        ({"field": Samples.concat([FIELD, CLEAN[:2]])}, "field"),
        ({"taught": (TeachingLabels(samples=CLEAN[:2]),)}, "the teaching labels"),
    ],
)
def test_clean_inputs_must_not_be_learned_from(part, name):
    with pytest.raises(ValueError, match=f"learned from, got 2 of 60 that are in {name} too"):
        known_blobs(**part)


def test_an_input_with_two_different_labels_is_rejected_and_with_two_equal_ones_accepted():
    draw = TeachingLabels(samples=FIELD[:6])
    wrong = TeachingLabels(samples=FIELD[4:9].with_labels(1 - FIELD[4:9].labels))
    with pytest.raises(ValueError, match="two different teaching labels"):
        known_blobs(taught=(draw, wrong))
    assert len(known_blobs(taught=(draw, draw)).labels) == 12


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"train": TRAIN[:0]}, "train"),
        ({"clean": CLEAN[:0]}, "clean"),
        ({"train": TRAIN.with_labels(None)}, "no labels"),
        ({"clean": CLEAN.with_labels(None)}, "no labels"),
        ({"unexplained": 1.5}, "unexplained"),
        ({"priors": (0.5, -0.5)}, "0.5"),
    ],
)
def test_arguments_that_mean_nothing_are_rejected(part, message):
    with pytest.raises(ValueError, match=message):
        known_blobs(**part)


def test_teaching_labels_are_labelled_and_not_empty():
    with pytest.raises(ValueError, match="no labels"):
        TeachingLabels(samples=FIELD.with_labels(None))
    with pytest.raises(ValueError, match="samples"):
        TeachingLabels(samples=FIELD[:0])
    assert not TeachingLabels(samples=FIELD).random
    assert TeachingLabels(samples=FIELD, use="teaching, judging and estimates").random


def test_a_prior_is_needed_for_each_class_of_the_model():
    known_blobs(priors=(0.3, 0.7)).check_model(separator())
    with pytest.raises(ValueError, match="2 classes, got 3"):
        known_blobs(priors=(0.3, 0.3, 0.4)).check_model(separator())
    with pytest.raises(ValueError, match="labels must be below the model's 2 classes"):
        known_digits(10).check_model(Classifier(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))))


# What it contains


def test_labels_of_field_inputs_are_removed():
    assert known_blobs().field.y is None
    assert torch.equal(known_blobs().field.ids, FIELD.ids)
    assert replace(known_blobs(), field=FIELD).field.y is None
    assert FIELD.y is not None  # the caller's stay


def test_labels_are_those_of_all_draws_and_never_none():
    known = known_blobs()
    assert len(known.labels) == 0
    assert known.labels.y is not None
    more = known.with_labels(TeachingLabels(samples=FIELD[:3]), TeachingLabels(samples=OTHER[:4]))
    assert torch.equal(more.labels.ids, torch.cat([FIELD.ids[:3], OTHER.ids[:4]]))
    assert torch.equal(more.labels.labels, torch.cat([FIELD.labels[:3], OTHER.labels[:4]]))
    assert known.taught == ()  # unchanged


@given(gone=st.sets(st.integers(0, 159), max_size=160))
def test_without_leaves_out_these_inputs_and_nothing_else(gone):
    everything = Samples.concat([FIELD, OTHER])
    ids = everything.ids[sorted(gone)]
    known = known_blobs(taught=(TeachingLabels(samples=FIELD[:5]), TeachingLabels(samples=OTHER)))
    left = known.without(ids)
    assert not bool(torch.isin(torch.cat([left.field.ids, left.labels.ids]), ids).any())
    assert len(left.field) == 120 - len([i for i in gone if i < 120])
    assert len(left.labels) == 45 - len([i for i in gone if i < 5 or i >= 120])
    assert torch.equal(left.train.ids, known.train.ids)
    assert all(len(draw) for draw in left.taught)


def test_without_leaves_out_failures_of_these_inputs_and_training_inputs():
    """An arm that learns from a failure learns the label of its seed."""
    suite = failing()
    left = known_blobs(failures=suite).without(torch.cat([OTHER.ids[[0, 7]], TRAIN.ids[3:5]]))
    assert left.failures is not None
    assert torch.equal(left.failures.seed, torch.cat([suite.seed[1:7], suite.seed[8:]]))
    assert torch.equal(left.failures["mass"], torch.cat([suite["mass"][1:7], suite["mass"][8:]]))
    assert torch.equal(left.train.ids, torch.cat([TRAIN.ids[:3], TRAIN.ids[5:]]))


def test_failures_weigh_their_mass_times_their_naturalness():
    suite = failing()
    known = known_blobs(failures=suite)
    assert torch.allclose(known.failure_weights, suite["mass"].double() * suite["naturalness"].double())
    bare = replace(suite, columns={})
    assert torch.equal(known_blobs(failures=bare).failure_weights, torch.ones(40, dtype=torch.float64))


def test_conditions_are_known_only_if_there_are_some():
    assert known_digits().has_conditions
    assert not known_digits(recipe=None).has_conditions
    assert not known_digits(recipe=replace(CONDITIONS, severities={})).has_conditions


# Class shares


def test_class_shares_are_the_training_datas_unless_others_are_known():
    train = TRAIN[TRAIN.labels.argsort()[:80]]  # 50 of class 0, 30 of class 1
    assert known_blobs(train=train).class_shares.tolist() == [0.625, 0.375]
    assert known_blobs(train=train, priors=(0.25, 0.75)).class_shares.tolist() == [0.25, 0.75]


@given(unexplained=st.floats(0.05, 1), prior=st.floats(0, 1))
def test_priors_count_the_less_the_less_conditions_explain(unexplained, prior):
    train = TRAIN[TRAIN.labels.argsort()[:80]]
    given_ones = {"train": train, "clean": CLEAN, "field": FIELD, "priors": (prior, 1 - prior)}
    known = known_field(**given_ones, conditions=fitted(unexplained))
    assert known.unexplained == pytest.approx(unexplained)
    share = min(1.0, 2 * unexplained)
    expected = (1 - share) * prior + share * 0.625
    assert known.class_shares.tolist() == pytest.approx([expected, 1 - expected])
    assert known_field(**given_ones).class_shares.tolist() == pytest.approx([0.625, 0.375])  # no conditions at all


def test_without_priors_none_are_made_up():
    known = known_field(train=TRAIN, clean=CLEAN, field=FIELD, conditions=fitted(0.2))
    assert known.priors == ()
    assert known.recipe == CONDITIONS
    assert known_field(train=TRAIN, clean=CLEAN, field=FIELD).unexplained == 1


# Identity


def test_clean_inputs_are_part_of_the_identity():
    """They decide whether images are mirrored."""
    assert described(known_blobs().identity) != described(known_blobs(clean=CLEAN[:-1]).identity)


def test_equal_knowledge_has_equal_identity():
    def build() -> FieldKnowledge:
        return known_digits(20, priors=(0.1,) * 10)

    assert described(build().identity) == described(build().identity)
    known = known_blobs(12)
    assert described(known.identity) == described(replace(known, reserved=OTHER.ids).identity)  # not taught
    halves = (TeachingLabels(samples=FIELD[:6]), TeachingLabels(samples=FIELD[6:12], drawn="by risk"))
    assert described(known.identity) == described(known_blobs(taught=halves).identity)  # the same labels


@pytest.mark.parametrize(
    "part",
    [
        {"train": TRAIN[:-1]},
        {"train": TRAIN.with_labels(1 - TRAIN.labels)},
        {"field": FIELD[:-1]},
        {"taught": (TeachingLabels(samples=FIELD[:13]),)},
        {"taught": (TeachingLabels(samples=FIELD[:12].with_labels(1 - FIELD[:12].labels)),)},
        {"recipe": CONDITIONS},
        {"unexplained": 0.5},
        {"priors": (0.4, 0.6)},
        {"failures": failing()},
        {"failures": failing().with_columns(mass=torch.ones(40))},
        {"failures": replace(failing(), label=1 - failing().label)},
    ],
)
def test_whatever_is_taught_changes_the_identity(part):
    base = known_blobs(12, failures=failing(OTHER[:20])) if "failures" in part else known_blobs(12)
    assert described(base.identity) != described(replace(base, **part).identity)


def test_identities_of_failures_tell_labels_and_weights_apart():
    suite = failing()
    kinds = [suite, suite.with_columns(mass=torch.ones(40)), replace(suite, label=1 - suite.label)]
    assert len({described(known_blobs(failures=kind).identity) for kind in kinds}) == 3
