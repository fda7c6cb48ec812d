"""The doctor: every mistake is reported under its own name, a healthy model has no findings, and it never raises."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from torch import Tensor, nn
from torch.nn import functional as F

from operant.data import Samples
from operant.generate import PGD, DeepFool
from operant.model import Classifier
from operant.model.doctor import Finding, at_chance, examine, foreign_labels, measured_accuracy
from operant.model.remedies import Accuracy, Remedy, with_ties

CLASSES = 4


class Module(nn.Module):
    """Whatever function a test gives it."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def scores(x: Tensor) -> Tensor:
    """The first entries of an input are its classes' logits, so that every answer is known."""
    return 8 * x.flatten(1)[:, :CLASSES]


def samples(n: int = 120, *shape: int, seed: int = 0, labels: bool = True) -> Samples:
    x = torch.rand(n, *(shape or (6,)), generator=torch.Generator().manual_seed(seed))
    return Samples(x, scores(x).argmax(1) if labels else None)


def names(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.name for finding in findings]


def diagnose(function: Callable[[Tensor], object], data: Samples | None = None, **options: object) -> list[str]:
    findings = Classifier(Module(function), **options).doctor(samples() if data is None else data)
    for finding in findings:
        assert finding.severity in ("error", "warning")
        assert finding.problem
        assert finding.advice
        assert not finding.advice.endswith(".")
        assert str(finding) == f"{finding.severity}: {finding.name}: {finding.problem}. {finding.advice}."
    return names(findings)


# Nothing to find


@pytest.mark.parametrize("shape", [(6,), (1, 4, 4), (3, 2, 5, 5)])
@pytest.mark.parametrize("n", [1, 3, 15, 120, 700])
@pytest.mark.parametrize("labels", [True, False])
def test_a_healthy_model_gives_nothing(shape: tuple[int, ...], n: int, labels: bool) -> None:
    assert diagnose(scores, samples(n, *shape, labels=labels)) == []


@given(seed=st.integers(0, 10_000), width=st.integers(2, 8), n=st.integers(1, 40), scale=st.floats(0.1, 1.0))
@settings(max_examples=30)
def test_a_network_judged_by_its_own_answers_gives_nothing(seed: int, width: int, n: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, width))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    x = torch.rand(n, 5, generator=generator)
    model = Classifier(module)
    assert model.doctor(Samples(x, model.predict(x))) == ()


def test_log_probabilities_are_fine() -> None:
    assert diagnose(lambda x: scores(x).log_softmax(1)) == []


def test_the_random_numbers_of_the_program_are_left_alone() -> None:
    state = torch.get_rng_state()
    assert diagnose(lambda x: F.dropout(scores(x), 0.1)) == ["answers differ"]
    assert torch.equal(torch.get_rng_state(), state)


# Each mistake alone, under its own name


MISTAKES: dict[str, Callable[[Tensor], object]] = {
    "outputs are probabilities": lambda x: scores(x).softmax(1),
    "answers differ": lambda x: F.dropout(scores(x), 0.3, training=True),
    "rows influence each other": lambda x: scores(x) / scores(x).std(),
    "no gradients": lambda x: scores(x.detach()),
    "zero gradients": lambda x: scores(x + (x.round() - x).detach() * 0 + x.round() * 0 - x + x.detach()),
    "NaN gradients": lambda x: scores(x) + ((x - x).pow(2).sum(1, keepdim=True)).sqrt(),
    "not logits": lambda x: scores(x)[:, 0],
    "does not run": lambda x: F.linear(x, torch.ones(3, 7)),
    "vanishing gradients": lambda x: 1e4 * scores(x),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_reported_under_its_own_name(mistake: str) -> None:
    assert diagnose(MISTAKES[mistake]) == [mistake]


def test_a_softmax_over_a_trained_networks_logits_is_seen() -> None:
    assert diagnose(lambda x: (20 * scores(x)).softmax(1)) == ["outputs are probabilities"]


def test_batch_norm_without_running_statistics_lets_rows_meet() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), Module(scores))
    data = samples(100, 4)
    assert names(Classifier(module).doctor(data)) == ["rows influence each other"]
    kept = nn.Sequential(nn.BatchNorm1d(4), Module(scores))
    assert Classifier(kept).doctor(data) == ()


def test_dependent_rows_are_found_in_a_single_input_too() -> None:
    assert diagnose(lambda x: scores(x) - x.mean(), samples(1)) == ["rows influence each other"]


def test_dropout_is_not_reported_as_dependent_rows() -> None:
    noisy = F.dropout
    assert diagnose(lambda x: noisy(scores(x), 0.3)) == ["answers differ"]
    assert diagnose(lambda x: noisy(scores(x - x.mean()), 0.3)) == ["answers differ", "rows influence each other"]


def test_randomness_that_cannot_be_replayed_is_not_taken_for_influence() -> None:
    own = torch.Generator().manual_seed(0)
    assert diagnose(lambda x: scores(x) + 0.1 * torch.randn(len(x), 1, generator=own)) == ["answers differ"]


def test_dependent_rows_are_found_among_constant_inputs() -> None:
    assert "rows influence each other" in diagnose(lambda x: scores(x - x.mean()), Samples(torch.zeros(20, 6)))


def test_one_hot_answers_are_probabilities_without_gradients() -> None:
    found = diagnose(lambda x: F.one_hot(scores(x).argmax(1), CLASSES).float())
    assert found == ["outputs are probabilities", "no gradients"]


def test_rounded_inputs_have_gradients_of_zero() -> None:
    assert "zero gradients" in diagnose(lambda x: scores((255 * x).round() / 255))


def test_zero_gradients_of_some_rows_are_a_warning() -> None:
    data = samples()
    (finding,) = Classifier(Module(lambda x: scores(x) * (x[:, 4:5] > 0.5) + 1)).doctor(Samples(data.x))
    assert (finding.name, finding.severity) == ("zero gradients", "warning")


def test_a_single_row_with_zero_gradients_is_nothing_to_tell() -> None:
    x = samples(32).x.clamp(min=0.1)
    x[0, 4] = 0
    assert diagnose(lambda x: scores(x) * (x[:, 4:5] > 0) + 1, Samples(x)) == []
    assert diagnose(lambda x: scores(x) * (1 + 1e4 * (x[:, 4:5] == 0)), Samples(x)) == []


def test_work_in_place_that_breaks_differentiation_is_reported() -> None:
    def forward(x: Tensor) -> Tensor:
        y = scores(x).exp()
        z = y.log()
        y.zero_()
        return z

    (finding,) = Classifier(Module(forward)).doctor(samples())
    assert finding.name == "no gradients"
    assert "modified by an inplace operation" in finding.problem


def test_saturated_logits_ask_for_attacks_on_the_logits() -> None:
    (finding,) = Classifier(Module(lambda x: 1e4 * scores(x))).doctor(samples())
    assert finding.severity == "warning"
    assert "DeepFool" in finding.advice
    assert diagnose(lambda x: 2 * scores(x)) == []


# Inputs


def test_nan_inputs_are_counted_and_the_rest_is_examined() -> None:
    data = samples()
    x = data.x.clone()
    x[3, 2], x[7, 1] = torch.nan, torch.inf
    findings = Classifier(Module(lambda x: scores(x).softmax(1))).doctor(Samples(x, data.y))
    assert names(findings) == ["NaN inputs", "outputs are probabilities"]
    assert "2 of 120" in findings[0].problem


@pytest.mark.parametrize("labels", [True, False])
def test_bytes_within_unit_bounds_are_one_finding(labels: bool) -> None:
    data = samples(labels=labels)
    findings = Classifier(Module(scores)).doctor(Samples((data.x * 255).round(), data.y))
    assert names(findings) == ["range looks like 0..255"]
    assert "Divide the inputs by 255" in findings[0].advice


def test_a_module_that_takes_bytes_is_not_called_bad_when_bounds_are_wrong() -> None:
    def takes_bytes(x: Tensor) -> Tensor:
        return scores(x / 255) if x.max() > 2 else scores(torch.cat([x[:, 1:], x[:, :1]], 1))

    data = samples()
    assert diagnose(takes_bytes, Samples(data.x * 255, data.y)) == ["range looks like 0..255"]
    assert diagnose(takes_bytes, data, bounds=(0, 255)) == ["range looks like 0..1"]


def test_bytes_do_not_hide_other_mistakes() -> None:
    data = samples()
    found = diagnose(lambda x: scores(x).softmax(1), Samples(data.x * 255, data.y))
    assert found == ["range looks like 0..255", "outputs are probabilities"]


def test_unit_inputs_within_byte_bounds_are_reported() -> None:
    assert diagnose(scores, bounds=(0, 255)) == ["range looks like 0..1"]


def test_inputs_outside_bounds_are_reported_with_their_range() -> None:
    data = samples()
    (finding,) = Classifier(Module(scores)).doctor(Samples(1.5 * data.x, data.y))
    assert finding.name == "inputs outside bounds"
    outside = int((1.5 * data.x > 1).any(1).sum())
    assert f"to {float(1.5 * data.x.max()):.4g}" in finding.problem
    assert f"{outside} of 120" in finding.problem
    (finding,) = Classifier(Module(scores)).doctor(Samples(2 * data.x - 1, data.y))
    assert "already normalised" in finding.advice


def test_tables_with_larger_numbers_are_not_taken_for_bytes() -> None:
    data = samples()
    table = Samples(7.9 * data.x, data.y)
    assert diagnose(lambda x: scores(x / 8), table) == ["inputs outside bounds"]
    assert diagnose(lambda x: scores(x / 8), table, bounds=(-torch.inf, torch.inf)) == []


def test_no_inputs_are_reported() -> None:
    assert diagnose(scores, Samples(torch.zeros(0, 6))) == ["no inputs"]
    assert diagnose(scores, Samples(torch.full((3, 6), torch.nan))) == ["NaN inputs"]


# Modules that do not fit


def test_a_wrong_shape_is_reported_with_the_modules_message() -> None:
    (finding,) = Classifier(nn.Conv2d(3, 4, 3)).doctor(samples(20, 1, 8, 8))
    assert finding.name == "does not run"
    assert "shape (1, 8, 8)" in finding.problem
    assert "expected input[16, 1, 8, 8] to have 3 channels" in finding.problem


def test_a_wrong_type_asks_for_conversion() -> None:
    (finding,) = Classifier(nn.Linear(6, 3)).doctor(Samples(samples().x.double()))
    assert finding.name == "does not run"
    assert "x.float()" in finding.advice


def test_wrong_normalisation_is_reported() -> None:
    (finding,) = Classifier(Module(scores), mean=[0.1, 0.2]).doctor(samples())
    assert finding.name == "does not run"
    assert "one value per channel (6)" in finding.problem


@pytest.mark.parametrize(
    "output",
    [lambda x: (x, x), lambda x: None, lambda x: x[:, :1], lambda x: x.sum(), lambda x: x[:, :3].argmax(1)],
)
def test_other_outputs_than_logits_are_reported(output: Callable[[Tensor], object]) -> None:
    assert diagnose(output) == ["not logits"]


def test_nan_logits_are_counted_and_the_rest_is_examined() -> None:
    data = samples()
    module = Module(lambda x: torch.where(x[:, 5:] < 0.2, torch.nan, scores(x).softmax(1)))
    findings = Classifier(module).doctor(data)
    assert names(findings) == ["NaN logits", "outputs are probabilities"]
    assert f"for {int((data.x[:, 5] < 0.2).sum())} of 120" in findings[0].problem
    assert diagnose(lambda x: scores(x) * torch.nan) == ["NaN logits"]


# Labels


def test_labels_outside_the_classes_are_reported_and_the_rest_is_checked() -> None:
    data = samples()
    y = data.labels.clone()
    y[5] = 9
    findings = Classifier(Module(scores)).doctor(Samples(data.x, y))
    assert names(findings) == ["labels outside the classes"]
    assert "1 of 120 labels are 4 or more (largest 9)" in findings[0].problem
    named = Classifier(Module(scores)).doctor(Samples(data.x, y, classes=tuple("abcdefghij")))
    assert "(largest 9, j)" in named[0].problem
    y = data.labels.flip(0).clone()
    y[5] = 9
    assert diagnose(scores, Samples(data.x, y)) == ["labels outside the classes", "accuracy at chance"]


def test_accuracy_is_computed_on_the_labels_within_the_classes() -> None:
    data = samples(100)
    assert diagnose(scores, Samples(data.x, torch.where(torch.arange(100) < 90, 9, data.labels))) == [
        "labels outside the classes"
    ]


def test_labels_counted_from_one_are_one_finding() -> None:
    data = samples()
    (finding,) = Classifier(Module(scores)).doctor(Samples(data.x, data.labels + 1))
    assert finding.name == "labels outside the classes"
    assert "subtract 1" in finding.advice
    assert foreign_labels(data.labels, CLASSES) == []


def test_labels_in_another_order_are_at_chance() -> None:
    data = samples()
    assert diagnose(scores, Samples(data.x, 3 - data.labels)) == ["accuracy at chance", "class order may be wrong"]
    assert diagnose(scores, Samples(data.x, data.labels.roll(1))) == ["accuracy at chance"]


def test_a_constant_answer_is_at_chance_however_common_the_class() -> None:
    y = (torch.arange(400) % 10 == 0).long()  # nine in ten are class 0
    logits = torch.tensor([[1.0, 0.0]]).repeat(400, 1)
    (finding,) = at_chance(logits, y)
    assert "360 of 400 predictions are right (90 %)" in finding.problem
    assert "class 0, is given for 100 %" in finding.problem
    (finding,) = at_chance(logits, y, ("cat", "dog"))
    assert "class cat, is given for 100 %" in finding.problem
    model = Classifier(Module(lambda x: 0 * x[:, :2] + logits[: len(x)]), bounds=(0, 1))
    found = examine(model, Samples(torch.rand(400, 2), y, classes=("cat", "dog")))
    assert any("class cat, is given for 100 %" in finding.problem for finding in found)


def test_a_weak_model_is_not_called_chance() -> None:
    y = torch.arange(200) % 10
    predictions = torch.where(torch.arange(200) % 3 == 0, y, (7 * torch.arange(200) + 3) % 10)
    assert 0.3 < float((predictions == y).double().mean()) < 0.5
    assert at_chance(F.one_hot(predictions, 10).float(), y) == []


def test_a_good_model_on_a_single_class_is_not_called_chance() -> None:
    predictions = (torch.arange(300) % 10 == 0).long()  # nine in ten are right
    assert at_chance(F.one_hot(predictions, 10).float(), torch.zeros(300).long()) == []
    assert names(tuple(at_chance(F.one_hot(predictions + 1, 10).float(), torch.zeros(300).long())))


@given(
    seed=st.integers(0, 10_000),
    classes=st.integers(2, 12),
    n=st.integers(1, 300),
    skill=st.floats(0.6, 1.0),
    skew=st.floats(0.0, 0.9),
)
@settings(max_examples=100)
def test_a_skilled_model_is_not_called_chance(seed: int, classes: int, n: int, skill: float, skew: float) -> None:
    """Where so many predictions are right that half of what chance leaves is reached, nothing may be reported."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    y[torch.rand(n, generator=g) < skew] = 0
    predictions = torch.where(torch.rand(n, generator=g) < skill, y, torch.randint(classes, (n,), generator=g))
    shares = [torch.bincount(v, minlength=classes).double() / n for v in (predictions, y)]
    chance = 1 / classes if shares[1].amax() == 1 else float((shares[0] * shares[1]).sum())
    if float((predictions == y).double().mean()) >= (1 + chance) / 2:
        assert at_chance(F.one_hot(predictions, classes).float(), y) == []


def test_answers_independent_of_the_labels_are_called_chance_at_the_stated_level() -> None:
    """Of guessing models, about 95 in 100 fit chance; the test's level is .05. At least 89 of 100 is not rejected."""
    found = 0
    for seed in range(100):
        g = torch.Generator().manual_seed(seed)
        y, predictions = (torch.randint(10, (200,), generator=g) for _ in range(2))
        found += len(at_chance(F.one_hot(predictions, 10).float(), y))
    assert found >= 89


def test_a_few_rows_are_not_enough_to_report_chance() -> None:
    all_wrong = F.one_hot(torch.arange(1, 10), 10).float()
    assert at_chance(all_wrong[:4], torch.arange(4)) == []
    assert names(tuple(at_chance(all_wrong, torch.arange(9)))) == ["accuracy at chance"]
    assert at_chance(torch.zeros(3, 10), None) == []


def test_one_class_of_a_file_sorted_by_class_does_not_mislead() -> None:
    data = samples(4000)
    by_class = data[data.labels.argsort()]
    assert diagnose(scores, by_class) == []
    assert diagnose(scores, by_class[:300]) == []
    constant = torch.tensor([4.0, 0.0, 0.0, 0.0])
    assert diagnose(lambda x: constant + 0 * scores(x), by_class) == ["zero gradients", "accuracy at chance"]
    hidden = ["accuracy at chance", "normalisation may be wrong"]  # inputs times 255 outweigh the constant
    assert diagnose(lambda x: constant + scores(x) / 100, by_class) == hidden


# Nothing makes it raise


BAD_MODULES = [
    *MISTAKES.values(),
    scores,
    lambda x: x / 0,
    lambda x: x.long(),
    lambda x: x.numpy(),
    lambda x: {}["key"],
    lambda x: scores(x)[torch.randperm(len(x))],
    lambda x: torch.inference_mode()(scores)(x),
    lambda x: scores(x) if len(x) % 2 else None,
]
BAD_INPUTS = [
    samples().x,
    samples().x * 255,
    torch.zeros(0, 6),
    torch.zeros(1, 6),
    torch.full((3, 6), torch.nan),
    torch.full((3, 6), 1e38),
    torch.zeros(3, 6, 0),
    torch.rand(20, 6, dtype=torch.float64),
    torch.rand(20, 6, dtype=torch.bfloat16),
    torch.rand(20, 2, 3),
]


@given(
    module=st.sampled_from(BAD_MODULES),
    x=st.sampled_from(BAD_INPUTS),
    labelled=st.booleans(),
    bounds=st.sampled_from([(0, 1), (0, 255), (-1, 1), (-torch.inf, torch.inf)]),
    mean=st.sampled_from([None, 0.5, [0.1, 0.2]]),
    batch_size=st.sampled_from([1, 7, 256]),
)
@settings(max_examples=150)
def test_nothing_makes_the_doctor_raise(
    module: Callable[[Tensor], object], x: Tensor, labelled: bool, bounds: object, mean: object, batch_size: int
) -> None:
    y = torch.arange(len(x)) * 3 if labelled else None
    model = Classifier(Module(module), bounds=bounds, mean=mean, batch_size=batch_size)
    findings = examine(model, Samples(x, y))
    assert all(isinstance(finding, Finding) for finding in findings)
    assert len(set(names(findings))) == len(findings), "nothing is reported twice"
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities), "errors come first"


# Modules that were not written for it


def settled(module: nn.Module, x: Tensor) -> nn.Module:
    """A network as training leaves it: activations alive, running statistics of real passes, no class favoured."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                size = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (2 / size) ** 0.5)
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.momentum = None  # average over all passes
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    module.train()
    last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    with torch.no_grad():
        module(x)
        module.eval()
        last.bias -= module(x).mean(0)
    return module


class GeluNet(nn.Module):
    """A network whose way depends on its inputs: it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] > 16 or x.abs().amax() > 1e3:
            x = F.avg_pool2d(x, 2)
        x = F.gelu(self.norm(self.conv(x)))
        for i, block in enumerate(self.blocks):
            x = x + F.gelu(block(x)) if i % 2 else F.gelu(block(x))
        return self.fc(x.mean((2, 3)))


def tabular_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))


FOREIGN = {
    "tabular MLP": (
        tabular_mlp,
        (20,),
        ("parameters frozen: in use", "0 of 1 batch norms folded"),
    ),
    "GELU network": (
        GeluNet,
        (1, 12, 12),
        (
            "parameters frozen, channels last: in use",
            "batch norm not folded: the module cannot be traced (TraceError)",
        ),
    ),
    "EfficientNet-Lite0": (
        lambda: EfficientNet.from_name("efficientnet-lite0", num_classes=10),
        (3, 64, 64),
        ("batch norm folded, channels last: in use", "49 of 49 batch norms folded"),
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_modules_are_examined_and_their_notes_tell_whether_folding_took_effect(name: str) -> None:
    build, shape, notes = FOREIGN[name]
    x = torch.rand(16, *shape, generator=torch.Generator().manual_seed(3))
    module = settled(build(), x)
    model = Classifier(module)
    with torch.no_grad():
        expected = module(x)
    assert expected.std(0).mean() > 1e-2, "answers must depend on the inputs"
    assert torch.allclose(model.batched_logits(x), expected, rtol=1e-3, atol=1e-3)
    assert model.doctor(Samples(x, expected.argmax(1))) == ()
    assert model.notes == notes


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_modules_are_attacked_like_ours(name: str) -> None:
    build, shape, _ = FOREIGN[name]
    x = torch.rand(16, *shape, generator=torch.Generator().manual_seed(3))
    model = Classifier(settled(build(), x))
    seeds = Samples(x, model.predict(x))
    for fuzzer in (PGD(radius=0.1, steps=3), DeepFool(steps=3, candidates=3)):
        suite = fuzzer(model, seeds, generator=torch.Generator().manual_seed(0))
        assert float(suite.x.min()) >= 0
        assert float(suite.x.max()) <= 1
        assert isinstance(fuzzer, DeepFool) or float(suite.distances("linf").max()) <= 0.1 + 1e-6
        assert torch.equal(suite.prediction, model.predict(suite.x))
        assert len(suite.failures()) > 0


# Accuracy, and what would raise it


def pictures(n: int = 240, *, classes: int = 10, seed: int = 0) -> Samples:
    """Colour images whose class decides the means of their channels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    means = torch.rand(classes, 3, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.25
    noise = 0.02 * torch.randn(n, 3, 6, 6, generator=generator)
    return Samples((means[y, :, None, None] + noise).clamp(0, 1), y)


def nearest_means(mean: Tensor, std: Tensor, *, flip: bool = False, classes: int = 10) -> nn.Module:
    """A module that expects normalised inputs and knows the classes of `pictures`."""
    means = torch.rand(classes, 3, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.25
    centres = (means - mean) / std

    def forward(z: Tensor) -> Tensor:
        z = z.mean((2, 3))
        return -60 * (z.flip(1) if flip else z).unsqueeze(1).sub(centres).pow(2).sum(2)

    return Module(forward)


IMAGENET = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
UNIT = torch.zeros(3), torch.ones(3)


def test_a_forgotten_normalisation_is_named() -> None:
    model = Classifier(nearest_means(*IMAGENET))
    assert model.accuracy(pictures()) < 0.9
    (finding,) = [f for f in model.doctor(pictures()) if f.name == "normalisation may be wrong"]
    assert "ImageNet's" in finding.problem
    assert "mean = [0.485, 0.456, 0.406] and std = [0.229, 0.224, 0.225]" in finding.advice
    assert finding.severity == "error"
    right = Classifier(nearest_means(*IMAGENET), mean=IMAGENET[0].tolist(), std=IMAGENET[1].tolist())
    assert right.doctor(pictures()) == ()


def test_a_superfluous_normalisation_is_named() -> None:
    model = Classifier(nearest_means(*UNIT), mean=0.1307, std=0.3081)
    (finding,) = [f for f in model.doctor(pictures()) if "normalisation" in f.name]
    assert ": none" in finding.problem


def test_reversed_channels_are_named() -> None:
    model = Classifier(nearest_means(*UNIT, flip=True))
    assert "channel order may be wrong" in names(model.doctor(pictures()))


@pytest.mark.parametrize(
    ("numbering", "name"),
    [
        (lambda y: (y + 1) % 10, "counted from 1"),
        (lambda y: 9 - y, "reversed"),
        (lambda y: torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])[y], "another order"),
    ],
)
def test_another_numbering_of_the_classes_is_named(numbering: Callable[[Tensor], Tensor], name: str) -> None:
    class Renumbered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nearest_means(*UNIT)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[:, numbering(torch.arange(10)).argsort()]

    (finding,) = [f for f in Classifier(Renumbered()).doctor(pictures()) if f.name == "class order may be wrong"]
    assert finding.problem.endswith(name)


def test_text_order_of_numeric_folders_is_named() -> None:
    folders = tuple(str(c) for c in range(12))
    data = pictures(classes=12)
    as_text = torch.tensor([sorted(folders).index(name) for name in folders])
    module = nearest_means(*UNIT, classes=12)
    model = Classifier(Module(lambda x: module(x)[:, as_text.argsort()]))
    assert model.accuracy(data) < 0.5
    (finding,) = [f for f in model.doctor(replace(data, classes=folders)) if f.name == "class order may be wrong"]
    assert "class names sorted as text" in finding.problem
    assert "0, 1, 10, 11, 2" in finding.advice


def test_a_folder_of_some_classes_may_be_numbered_wrongly() -> None:
    data = pictures()
    half = torch.rand(len(data), generator=torch.Generator().manual_seed(0)) < 0.7  # some accuracy, below 0.9
    y = torch.where(half, data.labels, (data.labels + 1) % 8).clamp(max=7)
    found = Classifier(nearest_means(*UNIT)).doctor(Samples(data.x, y, classes=tuple("abcdefgh")))
    assert "class order may be wrong" in names(found)


@given(seed=st.integers(0, 1000), share=st.floats(0.3, 0.85))
@settings(max_examples=10, deadline=None)
def test_a_weak_but_sound_model_is_given_no_remedy(seed: int, share: float) -> None:
    """Labels wrong at random: no setting helps, so none is named (each test has level 0.01 over all candidates)."""
    data = pictures(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(data), generator=generator) > share
    y = torch.where(wrong, torch.randint(10, (len(data),), generator=generator), data.labels)
    assert not [
        name for name in names(Classifier(nearest_means(*UNIT)).doctor(Samples(data.x, y))) if "may be wrong" in name
    ]


def test_the_accuracy_has_the_interval_of_clopper_and_pearson() -> None:
    data = pictures(100)
    y = torch.where(torch.arange(100) < 23, (data.labels + 1) % 10, data.labels)
    accuracy = measured_accuracy(Classifier(nearest_means(*UNIT)), Samples(data.x, y))
    assert accuracy is not None
    assert (accuracy.right, accuracy.n) == (77, 100)
    assert accuracy.interval == pytest.approx((beta.ppf(0.025, 77, 24), beta.ppf(0.975, 78, 23)))
    assert str(accuracy).startswith("77 % (77 of 100 right; 95 % interval 67.5 % to 84.8 %")


def test_an_accuracy_below_the_expected_one_is_an_error() -> None:
    data = pictures(1000)
    y = torch.where(torch.arange(1000) < 60, (data.labels + 1) % 10, data.labels)  # all rows count, not 256
    model = Classifier(nearest_means(*UNIT))
    assert model.doctor(Samples(data.x, y), expect=0.94) == ()
    assert names(model.doctor(Samples(data.x, y), expect=0.95)) == ["accuracy below expectation"]
    assert names(model.doctor(Samples(data.x), expect=0.95)) == ["accuracy unknown"]
    with pytest.raises(ValueError, match="expect must be a share from 0 to 1, got 90"):
        model.doctor(data, expect=90)


def test_normalisations_that_fit_about_as_well_are_named() -> None:
    def remedy(name: str, right: int, kind: str = "normalisation") -> Remedy:
        before, after = Accuracy(right=100, n=256), Accuracy(right=right, n=256)
        return Remedy(kind=kind, name=name, advice=f"Give {name}", before=before, after=after)

    best = remedy("CIFAR-10's", 239)
    others = [best, remedy("ImageNet's", 233), remedy("MNIST's", 150), remedy("reversed", 239, "class order")]
    assert (
        with_ties(best, others).advice == "Give CIFAR-10's, or those of training: about as well fit ImageNet's (91 %)"
    )
    assert with_ties(best, [best]) is best
