"""Every retrainer behind the one signature of `CaseRetrainer`, and losses that users write themselves."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from operant import Classifier, Samples, spawn
from operant.networks import initialise
from operant.results import load, save
from operant.retrain import (
    CaseRetrainer,
    DefensiveDistillation,
    Finetune,
    FinetuneEpoch,
    FinetuneRecord,
    LabelSmoothing,
    Loss,
    ManifoldMixup,
    OperationalFinetune,
    Retrained,
    TrainableModel,
    TrainingBatch,
    pmi_monitor,
)


def blobs(n: int, *, seed: str) -> Samples:
    """Two clouds in the plane, separated by the first coordinate."""
    y = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=spawn(0, seed)) * 0.1 + torch.stack([0.2 + 0.6 * y, torch.full((n,), 0.5)], 1)
    return Samples(x.clamp(0, 1), y)


TRAIN, CASES, VALIDATION = blobs(60, seed="train"), blobs(20, seed="cases"), blobs(40, seed="validation")
FIELD = blobs(30, seed="field")
MODEL = Classifier(
    initialise(lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), generator=spawn(0, "weights"))
)
QUICK = {"epochs": 2, "batch_size": 20, "learning_rate": 0.02, "max_drop": 1.0, "progress": False}
RETRAINERS: dict[str, CaseRetrainer] = {
    "fine-tuning": Finetune(**QUICK),
    "label smoothing": Finetune(loss=LabelSmoothing(share=0.2), **QUICK),
    "manifold mixup": Finetune(loss=ManifoldMixup(layers=("input", "1")), **QUICK),
    "distillation": DefensiveDistillation(temperature=5.0, **QUICK),
    "operational fine-tuning": OperationalFinetune(must_improve=False, **QUICK),
}


def weights(model: Classifier) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.unwrap().parameters()])


# The signature


def retrained(retrain: CaseRetrainer, seed: int = 1, **options) -> Retrained:
    data = {"validation": VALIDATION, "monitor": pmi_monitor(FIELD), "generator": spawn(seed)}
    return retrain(MODEL, TRAIN, CASES, **(data | options))


@pytest.mark.parametrize("name", RETRAINERS)
def test_every_retrainer_has_the_same_signature_and_record(name: str, tmp_path: Path) -> None:
    finished: list[FinetuneEpoch] = []
    before = weights(MODEL)
    done = retrained(RETRAINERS[name], max_drop=0.9, checkpoint=tmp_path / "deep" / "state", on_epoch=finished.append)
    record = done.record
    assert torch.equal(weights(MODEL), before)
    assert not torch.equal(weights(done.model), before)
    assert finished[-2:] == list(record.history)
    assert (record.n_train, record.n_cases, record.train_rows) == (60, 20, 60)
    assert (record.monitor_before, record.stopped_early, record.rejected_by_monitor) == (None, False, False)
    assert record.case_rows == 20  # a quarter of all rows, or each case once
    assert record.effective_cases == pytest.approx(20)
    assert [e.epoch for e in record.history if e.kept][-1] == record.best_epoch
    assert "at most 90 points below the original" in record.reason
    assert str(record).startswith("2 epochs, each with 60 training rows and 20 rows drawn from 20 cases")
    save(record, tmp_path / "record.json")
    assert load(tmp_path / "record.json", FinetuneRecord) == record


@pytest.mark.parametrize("name", RETRAINERS)
def test_the_checkpoint_changes_nothing_and_resumes(name: str, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(epoch: FinetuneEpoch) -> None:
        raise Interrupted

    expected = retrained(RETRAINERS[name])
    with pytest.raises(Interrupted):
        retrained(RETRAINERS[name], checkpoint=tmp_path / "state", on_epoch=interrupt)
    done = retrained(RETRAINERS[name], checkpoint=tmp_path / "state")
    assert done.record == expected.record
    assert torch.equal(weights(done.model), weights(expected.model))


@pytest.mark.parametrize("name", RETRAINERS)
def test_max_drop_of_the_call_replaces_the_option(name: str) -> None:
    retrain = RETRAINERS[name]
    by_option = retrained(replace(retrain, max_drop=0.2), monitor=None)
    by_call = retrained(retrain, max_drop=0.2, monitor=None)
    assert by_call.record == by_option.record
    assert torch.equal(weights(by_call.model), weights(by_option.model))
    with pytest.raises(ValueError, match="max_drop must be a share from 0 to 1, got 2"):
        retrained(retrain, max_drop=2)


@pytest.mark.parametrize("name", RETRAINERS)
def test_a_monitor_with_inputs_that_are_learned_from_is_rejected(name: str) -> None:
    for shared, where in ((TRAIN, "train"), (CASES, "cases")):
        sentence = f"the monitor must hold no input that is learned from, got 5 of 5 that are in {where} too"
        with pytest.raises(ValueError, match=sentence):
            retrained(RETRAINERS[name], monitor=pmi_monitor(shared[:5]))


def test_a_function_is_a_retrainer() -> None:
    def unchanged(model, train, cases, *, validation, monitor=None, max_drop=None, generator, **_) -> Retrained:
        return Retrained(model=model, record=retrained(RETRAINERS["fine-tuning"]).record)

    plugged: CaseRetrainer = unchanged
    assert retrained(plugged).model is MODEL


def test_a_record_knows_whether_the_monitor_rejected_it() -> None:
    values = {"monitor_before": 0.3, "stopped_early": False, "best_epoch": 0, "reason": "", "accuracy_before": 1.0}
    counts = {"n_train": 1, "n_cases": 1, "train_rows": 1, "case_rows": 1, "effective_cases": 1.0}

    def record(*monitors: float, **change) -> FinetuneRecord:
        history = tuple(
            FinetuneEpoch(epoch=i, loss=1.0, accuracy=1.0, monitor=m, kept=False, why="")
            for i, m in enumerate(monitors, 1)
        )
        return FinetuneRecord(**(values | counts | change), history=history)

    assert {f.name for f in fields(FinetuneRecord)} == {*values, *counts, "history", "diverged"}
    assert record(0.3, 0.4).rejected_by_monitor
    assert not record(0.3, 0.2).rejected_by_monitor
    assert not record().rejected_by_monitor
    assert not record(0.4, monitor_before=None).rejected_by_monitor


# Losses of one's own


@dataclass(frozen=True, kw_only=True)
class Focal:
    """Cross-entropy that counts confident rows less (Lin et al., 2017)."""

    gamma: float = 2.0

    def __call__(self, model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor:
        rows = cross_entropy(model.logits(batch.x), batch.y, reduction="none")
        return ((1 - (-rows).exp()) ** self.gamma * rows).mean()


def test_a_loss_can_be_plugged_in(tmp_path: Path) -> None:
    def focal(gamma: float) -> CaseRetrainer:
        return Finetune(loss=Focal(gamma=gamma), **QUICK)

    plain = retrained(RETRAINERS["fine-tuning"]).model
    same, other = retrained(focal(0.0)).model, retrained(focal(2.0), checkpoint=tmp_path / "state").model
    assert torch.allclose(weights(same), weights(plain), atol=1e-6)  # without focus it is the cross-entropy
    assert not torch.allclose(weights(other), weights(plain), atol=1e-4)
    with pytest.raises(ValueError, match="another retraining, which differs in loss;"):
        retrained(focal(1.0), checkpoint=tmp_path / "state")


def test_a_loss_gets_every_row_once_per_epoch_with_its_kind() -> None:
    batches: list[TrainingBatch] = []

    def watching(model: TrainableModel, batch: TrainingBatch, *, generator: torch.Generator) -> Tensor:
        batches.append(batch)
        return cross_entropy(model.logits(batch.x), batch.y)

    loss: Loss = watching
    retrained(Finetune(loss=loss, **QUICK))
    data = Samples.concat([TRAIN, CASES])
    assert [len(batch.x) for batch in batches] == [20] * 8
    for epoch in (batches[:4], batches[4:]):
        assert torch.equal(torch.cat([batch.rows for batch in epoch]).sort().values, torch.arange(80))
    for batch in batches:
        assert torch.equal(batch.x, data.x[batch.rows])
        assert torch.equal(batch.y, data.labels[batch.rows])
        assert torch.equal(batch.is_case, batch.rows >= 60)


def test_a_loss_can_reject_a_model() -> None:
    class Picky:
        def __call__(self, model, batch, *, generator):
            raise AssertionError("not reached")

        def check(self, model, x):
            raise ValueError(f"not with {model.classes(x)} classes")

    with pytest.raises(ValueError, match="not with 2 classes"):
        retrained(Finetune(loss=Picky(), **QUICK))
