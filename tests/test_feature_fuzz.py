"""Semantic tests: laws of the search, its first step by hand, and the memory and quality of sources."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from torch import Tensor, nn

from operant import Classifier, Samples, Suite, load_digits, spawn
from operant.campaign import Campaign
from operant.data import labels_of
from operant.generate import (
    ClassLikelihood,
    FeatureFuzz,
    FeatureSource,
    Quality,
    Validity,
    fit_class_likelihood,
    frechet_distance,
    from_biggan,
    tally,
    unguided,
)
from operant.generate.semantic.validity import label_margin
from operant.networks import LeNet5, fit, fit_cvae, initialise
from operant.results import load, save
from operant.retrain import OperationalFinetune
from operant.testing import LAWS

QUADRANTS = torch.kron(torch.eye(4).view(4, 2, 2), torch.ones(4, 4)).view(4, 64).double()


class Painter(nn.Module):
    """A bright quadrant for each of four classes, and texture from the latent."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2, self.fc3 = nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 16), nn.Linear(16, 64)
        generator = spawn(0, "painter")
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4, generator=generator)
        self.register_buffer("templates", QUADRANTS.float() - 0.25)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        h = self.fc3(self.fc2(self.act(self.fc1(z))).relu_())  # in place: hooks must not mind
        return (h + 2 * self.templates[y]).sigmoid().view(-1, 1, 8, 8)


class Flat(nn.Module):
    """A linear generator, to know the first step of a search by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 64)
        nn.init.normal_(self.fc.weight, std=0.05, generator=spawn(0, "flat"))
        self.register_buffer("templates", QUADRANTS.float() * 0.4)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return (0.3 + 0.2 * self.fc(z) + self.templates[y]).view(-1, 1, 8, 8)


def model_of(scale: float = 12.0) -> Classifier:
    """Looks at the mean of each quadrant."""
    linear = nn.Linear(64, 4, bias=False).double()
    linear.weight.data = scale * QUADRANTS / 16
    return Classifier(nn.Sequential(nn.Flatten(), linear))


def source_of(module: nn.Module | None = None, **options) -> FeatureSource:
    module = (Painter() if module is None else module).double()
    return FeatureSource(module=module, latent=6, classes=4, **options)


def fuzz_of(source: FeatureSource, **options) -> FeatureFuzz:
    return FeatureFuzz(**{"source": source, "budget": 6.0, "steps": 20, "trust": True} | options)


def suite_of(n: int = 20, **options) -> Suite:
    source, model = source_of(), model_of()
    seeds = source.seeds(n, model=model, generator=spawn(1))
    return fuzz_of(source, **options)(model, seeds, generator=spawn(0))


# The search


@pytest.mark.parametrize("which", ["source", "model", "anchor"])
def test_it_refuses_sources_and_models_without_gradients(which):
    """The search would stay where it is, and the model would look robust."""

    class Detached(Painter):
        def forward(self, z: Tensor, y: Tensor) -> Tensor:
            return super().forward(z, y).detach()

    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model_of().unwrap()((8 * x).round() / 8)

    model = Classifier(Rounded()) if which == "model" else model_of()
    source = source_of(Detached() if which == "source" else None)
    fuzz = fuzz_of(source, anchors=(Classifier(Rounded()),) if which == "anchor" else ())
    words = "images must depend on its layers fc1" if which == "source" else "gradients are needed here"
    with pytest.raises(ValueError, match=words):
        fuzz(model, source.seeds(12, model=model, generator=spawn(1)), generator=spawn(0))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("options", [{}, {"scaled": False, "layers": ("z", "fc2")}, {"target": 2, "confidence": 0.5}])
def test_it_keeps_the_laws_of_fuzzers(law, options):
    source, model = source_of(), model_of()
    law(fuzz_of(source, **options), model, source.seeds(12, model=model, generator=spawn(1)))


def test_it_finds_failures_and_the_early_layers_are_moved_by_default():
    source = source_of()
    assert source.layers == ("fc1", "fc2", "fc3")
    assert fuzz_of(source)._layers() == ("fc1",)
    suite = suite_of()
    assert len(suite) == suite.attempted == 20
    assert len(suite.failures()) >= 15
    assert (suite["perturbation"] > 0).all()


def test_a_budget_of_zero_gives_the_seeds_back():
    suite = suite_of(budget=0.0)
    assert torch.equal(suite.x, suite.x0)
    assert (suite["perturbation"] == 0).all()
    assert len(suite.failures()) == 0


@settings(max_examples=15)
@given(budget=st.floats(0, 20), scaled=st.booleans(), step=st.floats(0.01, 10), z=st.booleans())
def test_the_budget_is_never_exceeded(budget, scaled, step, z):
    layers = ("z", "fc1", "fc2") if z else None
    sizes = suite_of(8, budget=budget, scaled=scaled, step_size=step, layers=layers, confidence=3.0)["perturbation"]
    assert (sizes <= budget * (1 + 1e-6)).all()


def test_the_size_of_a_perturbation_is_that_over_all_layers_together():
    """The image made again by hand from the smallest possible perturbation of two layers of a linear generator."""
    source, model = source_of(Flat(), spreads={"fc": torch.ones(64), "z": torch.ones(6)}), model_of()
    seeds = source.seeds(16, model=model, generator=spawn(1))
    fuzz = fuzz_of(source, layers=("z", "fc"), steps=1, step_size=0.5, budget=9.0)
    suite = fuzz(model, seeds, generator=spawn(0))
    b = _towards_the_runner_up(model, seeds)
    w = source.module.fc.weight
    g = torch.cat([0.2 * b @ w, 0.2 * b], 1)
    p = 0.5 * g / g.norm(dim=1, keepdim=True)
    by_hand = seeds.x + (0.2 * (p[:, :6] @ w.T + p[:, 6:])).view_as(seeds.x)
    assert torch.allclose(suite.x, by_hand, atol=1e-12)
    assert torch.allclose(suite["perturbation"], torch.full((16,), 0.5))


def _towards_the_runner_up(model: Classifier, seeds: Samples) -> Tensor:
    logits = model.logits(seeds.x)
    other = logits.scatter(1, seeds.labels[:, None], -torch.inf).argmax(1)
    weight = model.unwrap()[1].weight.detach()
    return weight[other] - weight[seeds.labels]


@pytest.mark.parametrize("target", [None, 1])
def test_the_first_step_of_a_linear_generator_has_a_closed_form(target):
    spread = torch.linspace(0.5, 2.0, 64).double()
    source, model = source_of(Flat(), spreads={"fc": spread}), model_of()
    seeds = source.seeds(16, labels=[0, 2, 3], model=model, generator=spawn(1))
    fuzz = fuzz_of(source, steps=1, step_size=0.3, budget=9.0, target=target)
    suite = fuzz(model, seeds, generator=spawn(0))
    g = _towards_the_runner_up(model, seeds)
    if target is not None:
        weight = model.unwrap()[1].weight.detach()
        g = weight[target] - weight[seeds.labels]  # the label is the largest of the others
    g = 0.2 * g * spread
    p = 0.3 * g / g.norm(dim=1, keepdim=True)
    assert torch.allclose(suite.x, seeds.x + (0.2 * spread * p).view_as(seeds.x), atol=1e-12)


def test_the_top_loss_lowers_the_largest_probability():
    source, model = source_of(), model_of(2.0)
    seeds = source.seeds(16, model=model, generator=spawn(1))
    fuzz = fuzz_of(source, steps=1, step_size=0.05, loss="top")
    suite = fuzz(model, seeds, generator=spawn(0))
    assert (model.probs(suite.x).amax(1) < model.probs(seeds.x).amax(1)).all()


def test_scaled_and_unscaled_agree_where_spreads_are_one():
    ones = {"fc1": torch.ones(12).double(), "fc2": torch.ones(16).double()}
    source, model = source_of(spreads=ones), model_of()
    seeds = source.seeds(12, model=model, generator=spawn(1))
    a, b = (
        fuzz_of(source, layers=("fc1", "fc2"), scaled=scaled)(model, seeds, generator=spawn(0))
        for scaled in (True, False)
    )
    assert torch.equal(a.x, b.x)


def test_spreads_are_standard_deviations_within_a_class():
    source = source_of(Flat())
    z = torch.randn(4000, 6, generator=spawn(3)).double()
    found = source.spread(("z", "fc"))
    assert torch.equal(found["z"], torch.ones(6).double())
    assert torch.allclose(found["fc"], source.module.fc(z).std(0), rtol=0.6)  # from 64 latents

    class OfClass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 64)

        def forward(self, z: Tensor, y: Tensor) -> Tensor:
            return (self.fc(torch.eye(4)[y]) + 0 * z[:, :1]).sigmoid().view(-1, 1, 8, 8)

    source = FeatureSource(module=OfClass(), latent=6, classes=4)
    assert source.spread(("fc",))["fc"].max() < 1e-6  # what depends on the class alone is not moved


def test_a_confident_test_fails_by_its_margin_or_not_at_all():
    suite = suite_of(confidence=1.5, budget=4.0, steps=40)
    reached = suite["margin"] > 1.5
    assert int(reached.sum()) > 0
    assert (suite["perturbation"][~reached] > 3.9).all()  # the others have used their budget up
    far = {"budget": 50.0, "step_size": 0.5, "steps": 150}
    surer, sure = suite_of(confidence=3.0, **far), suite_of(**far)
    assert (surer["margin"] > 3.0).double().mean() > 0.8
    assert (surer["perturbation"] > sure["perturbation"]).double().mean() > 0.8


def test_a_targeted_test_reaches_its_class_and_skips_seeds_of_it():
    suite = suite_of(target=3, confidence=1.0, budget=30.0, steps=40)
    assert (suite.attempted, suite.skipped) == (15, 5)
    reached = suite["margin"] > 1.0
    assert int(reached.sum()) >= 10
    assert (suite.prediction[reached] == 3).all()


def test_a_row_that_fails_from_the_start_leaves_as_it_came():
    source, model = source_of(), model_of()
    seeds = source.seeds(12, generator=spawn(1))
    wrong = replace(seeds, y=(seeds.labels + torch.arange(12) % 2) % 4)  # people corrected every second label
    suite = fuzz_of(source)(model, wrong, generator=spawn(0))
    assert torch.equal(suite.x[1::2], seeds.x[1::2])
    assert (suite["perturbation"][1::2] == 0).all()
    assert (suite["perturbation"][::2] > 0).all()


def test_rows_that_leave_change_nothing_for_the_others():
    source, model = source_of(), model_of()
    seeds = source.seeds(20, model=model, generator=spawn(1))
    fuzz = fuzz_of(source)
    together = fuzz(model, seeds, generator=spawn(0))
    alone = Suite.concat([fuzz(model, seeds[i : i + 1], generator=spawn(0)) for i in range(20)])
    assert torch.allclose(together.x, alone.x, atol=1e-9)


def test_anchors_keep_the_label():
    source, model = source_of(), model_of()
    module = model.unwrap()
    module[1].weight.data[:, :32] *= 0.3  # looks more at the lower half
    anchor = Classifier(module)
    seeds = Classifier(module).correct(source.seeds(24, model=model, generator=spawn(1)))
    free, held = (
        fuzz_of(source, anchors=anchors, hold=1.0, steps=60)(model, seeds, generator=spawn(0))
        for anchors in ((), (anchor,))
    )
    kept = [int((anchor.predict(suite.x) == suite.label).sum()) for suite in (free, held)]
    assert kept[1] > kept[0]
    failing = held["margin"] > 0
    assert int(failing.sum()) > 0


# Sources


def test_seeds_are_of_the_labels_asked_for_in_turn_and_seen_by_the_model():
    source, model = source_of(), model_of()
    seeds = source.seeds(11, labels=[3, 0], model=model, generator=spawn(1))
    assert seeds.labels.tolist() == [3, 0] * 5 + [3]
    assert torch.equal(model.predict(seeds.x), seeds.labels)
    again = source_of().seeds(11, labels=[3, 0], model=model, generator=spawn(1))
    assert torch.equal(seeds.x, again.x)
    assert not torch.equal(seeds.x, source.seeds(11, labels=[3, 0], model=model, generator=spawn(2)).x)


def test_latents_are_drawn_again_until_the_model_sees_the_class():
    source = source_of()
    plain = source.seeds(64, generator=spawn(1))
    fussy = model_of()
    module = nn.Sequential(fussy.unwrap(), nn.Linear(4, 4).double())
    module[1].weight.data = torch.eye(4).double()
    module[1].bias.data = torch.tensor([-4.5, 0.0, 0.0, 0.0]).double()
    fussy = Classifier(module)
    share = float((fussy.predict(plain.x) == plain.labels).double().mean())
    assert share < 1
    assert fussy.accuracy(source.seeds(64, model=fussy, generator=spawn(1))) == 1


def test_latents_are_remembered_and_given_back(tmp_path):
    source, model = source_of(), model_of()
    seeds = source.seeds(20, model=model, generator=spawn(1))
    more = source.seeds(5, generator=spawn(2))
    mixed = Samples.concat([more, seeds])[torch.tensor([7, 1, 24, 3])]
    known = source.recall(mixed)
    assert torch.allclose(source.images(known.x, known.labels), mixed.x, atol=1e-12)
    save(source.latents, tmp_path / "latents.json")
    fresh = source_of()
    with pytest.raises(ValueError, match="20 of 20 seeds were not drawn by this source"):
        fuzz_of(fresh)(model, seeds, generator=spawn(0))
    fresh.remember(load(tmp_path / "latents.json", Samples))
    first, second = (fuzz_of(s)(model, seeds, generator=spawn(0)) for s in (source, fresh))
    assert first.digest() == second.digest()
    source.remember(source.latents)
    assert len(source.latents) == 25


def test_the_users_module_is_left_as_it_was():
    module = Painter().train()
    source_of(module)
    before = {name: values.clone() for name, values in module.state_dict().items()}
    source = source_of(module)
    seeds = source.seeds(12, generator=spawn(1))
    fuzz_of(source)(model_of(), seeds, generator=spawn(0))
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    assert not any(part._forward_hooks for part in [*module.modules(), *source.module.modules()])
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())


class Block(nn.Module):
    """A residual block with a batch norm that knows the class."""

    def __init__(self, inward: int, outward: int, embedding: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Linear(embedding, inward), nn.Linear(embedding, inward)
        self.norm = nn.BatchNorm2d(inward, affine=False)
        self.act, self.up = nn.ReLU(inplace=True), nn.Upsample(scale_factor=2)
        self.conv, self.skip = nn.Conv2d(inward, outward, 3, padding=1), nn.Conv2d(inward, outward, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.norm(x) * (1 + self.gain(y))[:, :, None, None] + self.bias(y)[:, :, None, None]
        return self.conv(self.up(self.act(h))) + self.skip(self.up(x))


class Big(nn.Module):
    """BigGAN in small: a shared embedding of classes, a dense layer, lists of lists of blocks, tanh."""

    def __init__(self, *, shared: bool = True) -> None:
        super().__init__()
        if shared:
            self.shared = nn.Embedding(5, 7)
        self.linear = nn.Linear(6, 8 * 4)
        blocks = [Block(8, 8, 7), Block(8, 4, 7)]
        self.blocks = nn.ModuleList([nn.ModuleList([block]) for block in blocks])
        self.output_layer = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3, padding=1))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        h = self.linear(z).view(-1, 8, 2, 2)
        for blocks in self.blocks:
            for block in blocks:
                h = block(h, y)
        return torch.tanh(3 * self.output_layer(h))


@pytest.mark.parametrize("embed", [None, "own"])
def test_a_generator_in_the_manner_of_biggan_is_a_source(embed):
    module = Big(shared=embed is None)
    own = nn.Embedding(5, 7).requires_grad_(False)
    source = from_biggan(module, latent=6, classes=5, embed=None if embed is None else own, truncation=0.8)
    assert source.layers == ("linear", "blocks.0.0", "blocks.1.0")
    seeds = source.seeds(40, generator=spawn(1))
    assert seeds.shape == (3, 8, 8)
    assert 0 <= float(seeds.x.min()) < 0.4 < 0.6 < float(seeds.x.max()) <= 1
    z, y = source.latents.x, seeds.labels
    e = (module.shared if embed is None else own)(y)
    assert torch.allclose((module.eval()(z, e) + 1) / 2, seeds.x, atol=1e-5)
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))
    judged = Samples(seeds.x, model.predict(seeds.x), seeds.ids)
    for layers in (None, ("blocks.0.0", "linear"), ("output_layer.0",)):
        fuzz = FeatureFuzz(source=source, budget=40.0, layers=layers, trust=True)
        suite = fuzz(model, judged, generator=spawn(0))
        assert (suite["perturbation"] > 0).all()
        assert len(suite.failures()) > 0
    assert float(source.spread(("blocks.0.0.gain",))["blocks.0.0.gain"].max()) < 1e-6


def test_classes_themselves_go_to_a_generator_without_an_embedding():
    class Indexed(Big):
        def forward(self, z: Tensor, y: Tensor) -> Tensor:
            return super().forward(z, torch.eye(5, 7)[y])

    source = from_biggan(Indexed(shared=False), latent=6, classes=5)
    assert source.seeds(6, generator=spawn(1)).shape == (3, 8, 8)


# Quality


def test_the_frechet_distance_is_the_formula():
    a, b = torch.randn(50, 5, generator=spawn(0)), 2 * torch.randn(60, 5, generator=spawn(1)) + 0.5
    first, second = (torch.cov(f.T).double().numpy() for f in (a.double(), b.double()))
    cross = sqrtm(first @ second).real
    means = float((a.double().mean(0) - b.double().mean(0)).square().sum())
    by_hand = means + (first + second - 2 * cross).trace()
    assert frechet_distance(a, b) == pytest.approx(by_hand, rel=1e-6)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-8)
    assert frechet_distance(a, a + 3) == pytest.approx(45, rel=1e-5)


def real_of(n: int = 400) -> Samples:
    source = source_of()
    return source.seeds(n, generator=spawn(7, "real"))


def judge_of() -> Classifier:
    return model_of()


def rated(source: FeatureSource) -> FeatureSource:
    return source.rated(real_of(), judge=judge_of(), layer="0", generator=spawn(8))


def test_a_perfect_source_is_good_enough():
    source = rated(source_of())
    quality = source.quality
    assert quality.problems == ()
    assert quality.consistency == pytest.approx(quality.accuracy, abs=0.05)
    assert quality.distance < 0.2
    assert quality.variety == pytest.approx(1, abs=0.2)
    assert "show the requested class" in str(quality)
    FeatureFuzz(source=source, budget=1.0)


def test_a_quality_round_trips(tmp_path):
    quality = rated(source_of()).quality
    save(quality, tmp_path / "quality.json")
    assert load(tmp_path / "quality.json", Quality) == quality


class Deaf(Painter):
    """Paints whatever class it likes."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return super().forward(z, (z[:, 0] * 50).long().abs() % 4)


class Stubborn(Painter):
    """Knows one picture a class."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return super().forward(0 * z, y)


class Dim(Painter):
    """Right, and varied, but far from real."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return 0.2 * super().forward(z, y)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Deaf(), "sees the requested class in only"),
        (Stubborn(), "have only 0 % of the variance"),
        (Dim(), "variances from real ones"),
    ],
    ids=["deaf", "stubborn", "dim"],
)
def test_a_poor_source_is_rejected(module, sentence):
    source = rated(source_of(module))
    with pytest.raises(ValueError, match=f"quality of the source is too low: .*{sentence}"):
        FeatureFuzz(source=source, budget=1.0)
    FeatureFuzz(source=source, budget=1.0, trust=True)


# Validity


def test_a_test_is_valid_where_all_parts_say_so():
    suite = suite_of()
    naive, other = model_of(), judge_of()
    flat = torch.zeros(len(suite))
    flat[::2] = 1.0

    def likelihood(x: Tensor) -> Tensor:
        return torch.eye(4)[suite.label] * torch.where(torch.arange(len(x)) % 3 == 0, -1.0, 1.0)[:, None]

    rated = Validity(judges=(naive, other), likelihood=likelihood, naturalness=lambda x: 0.04 + 0.02 * flat)(suite)
    assert torch.equal(rated["agree"], (naive.predict(suite.x) == suite.label).double())
    by_hand = (rated["agree"] == 1) & (torch.arange(20) % 3 != 0) & (flat == 1)
    assert torch.equal(rated["valid"] == 1, by_hand)
    part = Validity(judges=(naive,))(suite)
    assert part["likelihood_margin"].isnan().all()
    assert part["naturalness"].isnan().all()
    assert torch.equal(part["valid"], part["agree"])


def test_counts_are_given_for_all_and_for_valid_tests():
    suite = suite_of(10).with_columns(margin=torch.arange(10.0) - 4, valid=(torch.arange(10) % 2).double())
    found = tally(suite)
    assert (found.seeds, found.tests, found.failing, found.valid, found.valid_failing) == (10, 10, 5, 5, 3)
    assert found.seeds_valid_failing == 3
    assert tally(suite, margin=4.0).failing == 1
    assert str(found) == (
        "10 tests from 10 seeds: 5 fail; 5 are valid, and 3 of those fail (30 % of the seeds have one)"
    )


def test_a_fuzzer_rates_its_own_tests():
    suite = suite_of(validity=Validity(judges=(judge_of(),)), budget=0.0)
    assert tally(suite).valid == 20
    assert tally(suite).failing == 0


def test_a_margin_of_likelihood_is_against_the_best_other_class():
    evidence = torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0]])
    assert label_margin(evidence, torch.tensor([1, 2])).tolist() == [2.0, -2.0]


def test_class_likelihoods_tell_classes_apart_and_round_trip(tmp_path):
    real = real_of(160)
    real = Samples(real.x.float(), real.y)
    likelihood = fit_class_likelihood(real, latent=3, epochs=15, generator=spawn(0), progress=False)
    evidence = likelihood(real.x)
    assert evidence.shape == (160, 4)
    assert float((evidence.argmax(1) == real.labels).double().mean()) > 0.9
    save(likelihood, tmp_path / "likelihood.json")
    assert torch.equal(load(tmp_path / "likelihood.json", ClassLikelihood)(real.x), evidence)


# Invalid arguments


def test_a_layer_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ValueError, match="no layer named conv7; this source has z, fc1, fc2, fc3"):
        fuzz_of(source_of(), layers=("fc1", "conv7"))


def test_other_bad_layers_are_rejected():
    with pytest.raises(ValueError, match="layers must be one or more names, got 'fc1'"):
        fuzz_of(source_of(), layers="fc1")
    module = Painter()
    module.unused = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="layer unused must run once per image, got 0 times"):
        fuzz_of(source_of(module), layers=("unused",))


def test_a_source_that_does_not_fit_the_model_is_rejected():
    source = source_of()
    seeds = source.seeds(12, generator=spawn(1))
    module = model_of().unwrap()
    wide = Classifier(module, bounds=(0.0, 255.0))
    with pytest.raises(ValueError, match=r"within the model's bounds \(0.0, 255.0\), got \(0.0, 1.0\)"):
        fuzz_of(source)(wide, seeds, generator=spawn(0))
    with pytest.raises(ValueError, match=r"within the model's bounds"):
        source.seeds(12, model=wide, generator=spawn(1))
    small = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 4).double()))
    with pytest.raises(ValueError, match=r"fails on inputs of shape \(1, 8, 8\)"):
        source.seeds(12, model=small, generator=spawn(1))
    with pytest.raises(ValueError, match=r"fails on inputs of shape \(1, 8, 8\)"):
        fuzz_of(source)(small, seeds, generator=spawn(0))


def test_a_source_that_leaves_its_bounds_is_rejected():
    class Signed(Painter):
        def forward(self, z: Tensor, y: Tensor) -> Tensor:
            return 2 * super().forward(z, y) - 1

    with pytest.raises(ValueError, match=r"must lie within bounds \(0.0, 1.0\).*output=\(-1, 1\)"):
        source_of(Signed()).seeds(4, generator=spawn(0))
    fine = source_of(Signed(), output=(-1.0, 1.0)).seeds(4, generator=spawn(0))
    assert torch.allclose(fine.x, source_of().seeds(4, generator=spawn(0)).x, atol=1e-12)


def test_a_class_outside_the_labels_is_rejected():
    source = source_of()
    with pytest.raises(ValueError, match=r"labels must be the source's classes, 0 to 3, got \[-1, 4\]"):
        source.seeds(4, labels=[0, 4, -1], generator=spawn(0))
    with pytest.raises(ValueError, match="target must be one of the model's 4 classes, got 4"):
        fuzz_of(source, target=4)(model_of(), source.seeds(4, generator=spawn(0)), generator=spawn(0))


def test_a_model_that_never_sees_a_class_is_named():
    module = model_of().unwrap()
    module[1].weight.data[2] = -1.0
    with pytest.raises(ValueError, match=r"within 3 draws, and did not for 2 of 8, of classes \[2\]"):
        source_of().seeds(8, model=Classifier(module), tries=3, generator=spawn(0))


def test_a_source_of_unknown_quality_is_rejected():
    with pytest.raises(ValueError, match="the quality of the source must be known; give source.rated"):
        FeatureFuzz(source=source_of(), budget=1.0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": -1.0}, "budget must be 0 or more and finite, got -1.0"),
        ({"budget": float("inf")}, "budget must be 0 or more"),
        ({"loss": "hinge"}, 'loss must be "margin", or "top"'),
        ({"loss": "top", "target": 1}, 'loss must be "margin", or "top"'),
        ({"steps": 0}, "steps must be at least 1"),
        ({"confidence": -1.0}, "confidence must be 0 or more"),
        ({"target": -1}, "target must be a class"),
        ({"hold": 0.0}, "hold must be positive"),
    ],
)
def test_bad_options_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fuzz_of(source_of(), **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bounds": (1.0, 0.0)}, "bounds must be"),
        ({"output": (1.0, 1.0)}, "output must be"),
        ({"std": 0.0}, "std must be positive"),
    ],
)
def test_bad_sources_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        source_of(**options)


def test_validity_rejects_what_cannot_judge():
    with pytest.raises(ValueError, match="judges must not be empty; give an independently trained classifier"):
        Validity(judges=())
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        Validity(judges=(judge_of(),), level=1.0)
    with pytest.raises(ValueError, match="likelihood must give"):
        Validity(judges=(judge_of(),), likelihood=lambda x: torch.zeros(len(x)))(suite_of(4))
    with pytest.raises(ValueError, match="must have columns valid"):
        tally(suite_of(4))


# In a campaign


@pytest.mark.slow
def test_a_campaign_can_use_it_on_seeds_of_its_source(tmp_path):
    """Images of the source are the training inputs that seeds are drawn from, by use and weakness at those images."""
    digits = load_digits()
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    options = {"epochs": 8, "batch_size": 32, "learning_rate": 4e-3, "generator": spawn(0, "fit"), "progress": False}
    model = Classifier(fit(start, digits.train[:700], **options).module)
    learned = fit_cvae(digits.train, latent=8, width=12, epochs=15, generator=spawn(0, "source"), progress=False)
    source = FeatureSource.of(learned)
    made = source.seeds(200, model=model, generator=spawn(1))
    noise, rows = spawn(2), torch.arange(600) % len(digits.test)
    x = digits.test.x[rows] + 0.1 * torch.rand((600, 1, 8, 8), generator=noise)
    field = Samples(x.clamp(0, 1), digits.test.labels[rows])
    campaign = Campaign(
        requirement=0.001,
        moves={"features": partial(unguided, FeatureFuzz(source=source, budget=8.0, steps=15, trust=True))},
        rounds=1,
        labels=120,
        max_drop=0.2,
        seeds_per_round=40,
        cases_per_round=15,
        chunk=20,
        dimensions=4,
        judge_draws=0,
        retrainer=OperationalFinetune(epochs=1, steps=10, progress=False),
    )
    given_ = {"train": made, "clean": digits.train[700:900], "labeller": labels_of(field)}
    done = campaign(model, field=Samples(field.x, ids=field.ids), folder=tmp_path, **given_)
    assert done.rounds[-1].attempted == 40
    chunks = sorted((tmp_path / "round-001" / "suite").glob("chunk-*"))
    suite = Suite.concat([Suite.open(chunk) for chunk in chunks])
    assert len(suite) > 0
    assert bool((suite.prediction != suite.label).all())
    assert bool((source.latents.rows_of(suite.seed) >= 0).all())
    known = source.recall(suite.seeds)
    assert torch.allclose(source.images(known.x, known.labels), suite.seeds.x, atol=1e-5)
    assert bool((suite["perturbation"] <= 8.0 * (1 + 1e-6)).all())
    assert bool(((suite["mass"] >= 0) & (suite["mass"] <= 1)).all())
    again = campaign(model, field=Samples(field.x, ids=field.ids), folder=tmp_path, **given_)
    assert again.rounds == done.rounds
