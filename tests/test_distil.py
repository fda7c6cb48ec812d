"""Label smoothing and defensive distillation: labels and weights against ART and plain loops, and what is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from art.defences.preprocessor import LabelSmoothing as ArtLabelSmoothing
from art.defences.transformer.evasion import DefensiveDistillation as ArtDistillation
from art.estimators.classification import PyTorchClassifier
from torch import nn
from torch.nn.functional import cross_entropy

from operant import Classifier, Samples, spawn
from operant.model import copy_module
from operant.networks import initialise
from operant.results import load, save
from operant.retrain import DefensiveDistillation, Finetune, FinetuneRecord, LabelSmoothing
from operant.retrain.losses import smooth_labels


def blobs(n: int, *, seed: str) -> Samples:
    """Three clouds in the plane."""
    y = torch.arange(n) % 3
    centres = torch.tensor([[0.2, 0.2], [0.8, 0.3], [0.4, 0.8]])
    return Samples((centres[y] + 0.12 * torch.randn(n, 2, generator=spawn(0, seed))).clamp(0, 1), y)


def network(seed: str) -> nn.Module:
    return initialise(lambda: nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)), generator=spawn(0, seed))


TRAIN, VALIDATION = blobs(240, seed="train"), blobs(90, seed="validation")
NONE = TRAIN[:0]


def last(model: Classifier) -> float:
    """A monitor that keeps the last epoch: each is lower than the one before."""
    last.value -= 1
    return last.value


last.value = 0.0


def smoothing(share: float, **options) -> Finetune:
    return Finetune(loss=LabelSmoothing(share=share), **options)


MODEL = (
    smoothing(0.0, epochs=30, learning_rate=0.02, max_drop=1, progress=False)(
        Classifier(network("weights")), TRAIN, NONE, validation=VALIDATION, monitor=last, generator=spawn(0)
    )
).model
QUICK = {"epochs": 3, "learning_rate": 0.01, "max_drop": 1.0, "progress": False}


def same_weights(a: nn.Module, b: nn.Module, *, atol: float = 0.0) -> bool:
    return all(torch.allclose(p, q, rtol=0, atol=atol) for p, q in zip(a.parameters(), b.parameters(), strict=True))


# Labels


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_smooth_labels_are_those_of_art(share):
    y = torch.tensor([0, 3, 1, 1])
    hard = nn.functional.one_hot(y, 4).numpy().astype(np.float32)
    _, theirs = ArtLabelSmoothing(max_value=1 - share)(np.zeros((4, 2)), hard)
    ours = smooth_labels(y, 4, share)
    assert np.allclose(ours.numpy(), theirs, atol=1e-7)
    assert torch.allclose(ours.sum(1), torch.ones(4))


# Weights


class SoftCrossEntropy(nn.Module):
    """Of probabilities, as ART asks its students to return."""

    def forward(self, probs, y):
        return -(y * probs.clamp_min(1e-30).log()).sum(1).mean()


def test_a_student_at_temperature_one_is_that_of_art():
    """One batch per epoch, so that the order of rows does not matter; ART has no temperature."""
    student = nn.Sequential(copy_module(network("student")), nn.Softmax(1))
    wrapped = [
        PyTorchClassifier(
            model=m,
            loss=SoftCrossEntropy(),
            optimizer=torch.optim.Adam(m.parameters(), lr=0.01),
            input_shape=(2,),
            nb_classes=3,
            device_type="cpu",
        )
        for m in (nn.Sequential(MODEL.unwrap(), nn.Softmax(1)), student)
    ]
    ArtDistillation(wrapped[0], batch_size=240, nb_epochs=20)(TRAIN.x.numpy(), wrapped[1])
    distil = DefensiveDistillation(temperature=1.0, batch_size=240, **{**QUICK, "epochs": 20})
    start = Classifier(network("student"))
    ours = distil(
        MODEL, TRAIN, NONE, validation=VALIDATION, start=start, teacher=MODEL, monitor=last, generator=spawn(1)
    )
    assert ours.record.best_epoch == 20
    assert same_weights(ours.model.unwrap(), student[0], atol=1e-5)
    assert not same_weights(ours.model.unwrap(), start.unwrap(), atol=1e-2)


def plain(module: nn.Module, labels: torch.Tensor, t: float, stream: torch.Generator) -> nn.Module:
    """Three epochs in batches of 80."""
    module = copy_module(module).requires_grad_()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    torch.randint(2**63 - 1, (), generator=stream)  # seeds dropout
    for _ in range(3):
        for rows in torch.randperm(240, generator=stream).split(80):
            loss = cross_entropy(module(TRAIN.x[rows]) / t, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return module.requires_grad_(False)


def test_teacher_and_student_are_those_of_plain_loops():
    stream = spawn(1)
    begin = MODEL.unwrap()
    teacher = plain(begin, TRAIN.labels, 20.0, stream)
    student = plain(begin, (teacher(TRAIN.x) / 20).softmax(1), 20.0, stream)
    distil = DefensiveDistillation(temperature=20.0, batch_size=80, **QUICK)
    ours = distil(MODEL, TRAIN, NONE, validation=VALIDATION, monitor=last, generator=spawn(1))
    assert same_weights(ours.teacher.unwrap(), teacher, atol=1e-5)
    assert same_weights(ours.model.unwrap(), student, atol=1e-5)
    assert len(ours.teacher_record.history) == len(ours.record.history) == 3


def test_smoothing_is_a_plain_loop():
    expected = plain(MODEL.unwrap(), smooth_labels(TRAIN.labels, 3, 0.2), 1.0, spawn(1))
    smooth = smoothing(0.2, batch_size=80, **QUICK)
    ours = smooth(MODEL, TRAIN, NONE, validation=VALIDATION, monitor=last, generator=spawn(1))
    assert same_weights(ours.model.unwrap(), expected, atol=1e-5)


# What it is for


def test_a_distilled_model_is_surer_and_its_gradients_smaller():
    distil = DefensiveDistillation(temperature=20.0, epochs=60, learning_rate=0.03, max_drop=1, progress=False)
    ours = distil(MODEL, TRAIN, NONE, validation=VALIDATION, monitor=last, generator=spawn(1)).model
    assert ours.accuracy(VALIDATION) > MODEL.accuracy(VALIDATION) - 0.1
    sizes = []
    for model in (MODEL, ours):
        x = VALIDATION.x.clone().requires_grad_()
        cross_entropy(model.logits(x), model.predict(VALIDATION.x)).backward()
        sizes.append(float(x.grad.abs().sum(1).median()))
    assert sizes[1] < 0.2 * sizes[0]
    assert float(ours.probs(VALIDATION.x).amax(1).median()) > float(MODEL.probs(VALIDATION.x).amax(1).median())


def test_smoothed_models_are_less_sure():
    tune = smoothing(0.3, epochs=20, learning_rate=0.02, max_drop=1, progress=False)
    ours = tune(MODEL, TRAIN, NONE, validation=VALIDATION, monitor=last, generator=spawn(1)).model
    assert float(ours.probs(VALIDATION.x).amax(1).mean()) < float(MODEL.probs(VALIDATION.x).amax(1).mean())
    assert abs(float(ours.probs(TRAIN.x).amax(1).median()) - 0.7) < 0.1


# The guard, the record, a kill


def test_if_no_epoch_is_accurate_enough_the_model_stays():
    ruined = smoothing(0.9, epochs=2, learning_rate=0.5, max_drop=0.0, progress=False)
    wrong = Samples(TRAIN.x, (TRAIN.labels + 1) % 3)
    tuned = ruined(MODEL, wrong, NONE, validation=VALIDATION, start=Classifier(network("fresh")), generator=spawn(0))
    assert tuned.model is MODEL
    assert tuned.record.best_epoch == 0
    assert "original weights were kept" in tuned.record.reason


def test_records_come_back_from_disk_and_streams_stay(tmp_path):
    before = torch.random.get_rng_state()
    distil = DefensiveDistillation(**QUICK)
    runs = [distil(MODEL, TRAIN, NONE, validation=VALIDATION, generator=spawn(4)) for _ in range(2)]
    assert runs[0].record == runs[1].record
    assert same_weights(runs[0].model.unwrap(), runs[1].model.unwrap())
    assert torch.equal(before, torch.random.get_rng_state())
    save(runs[0].record, tmp_path / "record.json")
    assert load(tmp_path / "record.json", FinetuneRecord) == runs[0].record
    assert (runs[0].record.n_train, runs[0].record.n_cases) == (240, 0)


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [2, 4])
def test_a_killed_distillation_resumes(tmp_path, after):
    """In the teacher's turn, or in the student's."""
    distil = DefensiveDistillation(**QUICK)
    inputs = {"validation": VALIDATION, "start": Classifier(network("fresh"))}
    whole = distil(MODEL, TRAIN, NONE, generator=spawn(4), **inputs)
    met = []

    def interrupt(epoch):
        met.append(epoch)
        if len(met) == after:
            raise Killed

    with pytest.raises(Killed):
        distil(MODEL, TRAIN, NONE, generator=spawn(4), checkpoint=tmp_path / "state", on_epoch=interrupt, **inputs)
    again = distil(MODEL, TRAIN, NONE, generator=spawn(4), checkpoint=tmp_path / "state", **inputs)
    assert again.record == whole.record
    assert again.teacher_record == whole.teacher_record
    assert same_weights(again.model.unwrap(), whole.model.unwrap())
    with pytest.raises(ValueError, match="another retraining, which differs in temperature;"):
        replace(distil, temperature=5.0)(
            MODEL, TRAIN, NONE, generator=spawn(4), checkpoint=tmp_path / "state", **inputs
        )


# Rejected arguments


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LabelSmoothing(share=1.0), "share must be from 0 to below 1, got 1.0"),
        (lambda: DefensiveDistillation(temperature=0.0), "temperature must be positive and finite, got 0.0"),
        (lambda: DefensiveDistillation(epochs=0), "epochs must be at least 1, got 0"),
        (lambda: smoothing(0.1, learning_rate=-1), "learning_rate must be positive"),
        (
            lambda: smoothing(0.1)(MODEL, TRAIN[:0], NONE, validation=VALIDATION, generator=spawn(0)),
            "train must not be empty",
        ),
        (
            lambda: DefensiveDistillation()(MODEL, TRAIN, NONE, validation=TRAIN[:9], generator=spawn(0)),
            "validation must hold no input that is learned from",
        ),
        (
            lambda: smoothing(0.1)(
                MODEL, TRAIN, NONE, validation=VALIDATION, start=Classifier(nn.Linear(5, 3)), generator=spawn(0)
            ),
            "the module fails on inputs of shape",
        ),
    ],
)
def test_bad_settings_are_rejected(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value)
