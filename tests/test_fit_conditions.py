"""Fitting field conditions: hidden recipes come out, absent conditions stay out, what is not explained is reported."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from operant import Samples, load_digits, results, spawn
from operant.conditions import Recipe, Severity, apply, fixed, half_normal, normal, uniform
from operant.profile._appearance import ImageDescriptor, _principal
from operant.profile._matching import _narrowed, free_parameters, mixture, representative
from operant.profile.fit_conditions import FittedConditions, fit_conditions

WIDEST = Recipe(severities={"rotation": normal(40), "gaussian_noise": uniform(0, 0.5)})
QUICK = {"simulated": 700, "resamples": 60, "progress": False}
TINY = {"simulated": 60, "resamples": 20, "progress": False}


@pytest.fixture(scope="module")
def parts() -> dict[str, Samples]:
    return load_digits(size=14).train.split(field=0.45, clean=0.55)


def under(samples: Samples, severities: dict[str, Severity], seed: int = 0) -> Samples:
    """Field data: no labels, and these conditions."""
    drawn = Recipe(severities=severities).draw(len(samples), generator=spawn(seed, "field"))
    return Samples(apply(samples.x, drawn))


def coloured(n: int, seed: int) -> torch.Tensor:
    """Smooth colour images of 16 by 16 pixels."""
    coarse = torch.rand(n, 3, 6, 6, generator=spawn(seed))
    return torch.nn.functional.interpolate(coarse, size=16, mode="bicubic").clamp(0, 1)


def by_name(fitted: FittedConditions) -> dict[str, float]:
    return {f"{p.condition} {p.name}": p.value for p in fitted.parameters}


def small(seed: int, n: int = 60) -> Samples:
    return Samples(torch.rand(n, 1, 9, 9, generator=spawn(seed)), torch.arange(n) % 2)


# What it is for


def test_a_hidden_recipe_comes_out(digits28) -> None:
    parts = digits28.train.split(field=0.45, clean=0.55)
    field = under(parts["field"], {"rotation": normal(20), "gaussian_noise": uniform(0, 0.3)})
    fitted = fit_conditions(field, parts["clean"], widest=WIDEST, **QUICK, generator=spawn(1))
    found = by_name(fitted)
    assert found["rotation std"] == pytest.approx(20, abs=6)
    assert found["rotation mean"] == pytest.approx(0, abs=6)
    assert found["gaussian_noise high"] == pytest.approx(0.3, abs=0.05)
    assert fitted.after < 0.6 * fitted.before
    assert fitted.after < 1.5 * fitted.floor
    assert fitted.findings == ()
    assert fitted.recipe.severities["gaussian_noise"] == uniform(0, found["gaussian_noise high"])
    for p in fitted.parameters:
        assert p.limits[0] <= p.lower <= p.value <= p.upper <= p.limits[1]
        assert p.upper - p.lower < 0.5 * (p.limits[1] - p.limits[0])


def test_where_nothing_happened_nothing_is_found(parts) -> None:
    fitted = fit_conditions(under(parts["field"], {}), parts["clean"], widest=WIDEST, **QUICK, generator=spawn(1))
    assert fitted.active == ()
    assert fitted.recipe.severities == {}
    assert fitted.unexplained == 0
    assert "no condition was found" in str(fitted)
    assert "Each interval" not in str(fitted)
    assert fitted.after == pytest.approx(fitted.before, rel=0.1)
    assert fitted.findings == ()


def test_other_priors_are_not_mistaken_for_conditions(parts) -> None:
    """A field of ones and sevens: the priors come out along with the conditions."""
    y = parts["field"].labels
    field = under(parts["field"][(y == 1) | (y == 7)], {"gaussian_noise": uniform(0, 0.3)})
    widest = Recipe(severities={"gaussian_noise": uniform(0, 0.5), "scale": normal(0.5)})
    fitted = fit_conditions(field, parts["clean"], widest=widest, **QUICK, generator=spawn(1))
    assert by_name(fitted)["gaussian_noise high"] == pytest.approx(0.3, abs=0.06)
    assert fitted.active == ("gaussian_noise",)
    assert fitted.priors[1] + fitted.priors[7] > 0.7
    assert sum(fitted.priors) == pytest.approx(1)


def test_what_no_condition_explains_is_reported(parts) -> None:
    field = under(parts["field"], {"occlusion": uniform(0.3, 0.6)})
    widest = Recipe(severities={"brightness": normal(0.3)})
    fitted = fit_conditions(field, parts["clean"], widest=widest, **QUICK, generator=spawn(1))
    assert [f.name for f in fitted.findings] == ["conditions do not explain the field"]
    assert fitted.after > 1.5 * fitted.floor_high
    assert "no condition explains" in str(fitted)


def test_a_range_that_is_too_narrow_is_reported(parts) -> None:
    field = under(parts["field"], {"brightness": fixed(0.4)})
    widest = Recipe(severities={"brightness": uniform(0, 0.2)})
    fitted = fit_conditions(field, parts["clean"], widest=widest, **QUICK, generator=spawn(1))
    assert by_name(fitted)["brightness high"] == pytest.approx(0.2, abs=0.01)
    assert "parameter at the end of its range" in [f.name for f in fitted.findings]
    assert "brightness high 0.2" in str(fitted)
    assert "Each interval holds if these are the right conditions" in str(fitted)


def test_conditions_are_found_without_being_declared() -> None:
    """Colour images in the dark: exposure and noise are found among 25 conditions, and nothing else is needed."""
    everything = Samples(coloured(900, 3), torch.arange(900) % 3)
    hidden = {"exposure": normal(0.2, mean=-1.0), "gaussian_noise": uniform(0.02, 0.06)}
    field = under(everything[:400], hidden)
    fitted = fit_conditions(field, everything[400:], simulated=400, resamples=20, progress=False, generator=spawn(1))
    assert {"exposure", "gaussian_noise"} <= set(fitted.active)
    assert len(fitted.active) <= 3
    assert by_name(fitted)["exposure mean"] == pytest.approx(-1, abs=0.15)
    assert fitted.unexplained < 0.2
    assert set(fitted.recipe.names) == set(fitted.active)


# Odd fields


def test_a_field_of_one_class_is_not_mistaken_for_a_condition(parts) -> None:
    field = under(parts["field"][parts["field"].labels == 3], {})
    fits = [fit_conditions(field, parts["clean"], **QUICK, generator=spawn(seed)) for seed in (1, 2)]
    assert all(max(fitted.priors) == fitted.priors[3] > 3 * sorted(fitted.priors)[-2] for fitted in fits)
    assert sum(fitted.active != () for fitted in fits) <= 1  # there are only 64 images of the class


def test_grey_images_among_colour_images_are_reported_as_unexplained() -> None:
    """No severity imitates two kinds of images, so that none is put in their place."""
    mixed = coloured(500, 4)
    mixed[::2] = mixed[::2].mean(1, keepdim=True)
    fitted = fit_conditions(Samples(mixed), Samples(coloured(500, 5)), **QUICK, generator=spawn(1))
    assert fitted.unexplained > 0.5
    assert "conditions do not explain the field" in [f.name for f in fitted.findings]


def test_a_field_equal_to_the_training_data_has_no_condition(parts) -> None:
    fitted = fit_conditions(under(parts["clean"], {}), parts["clean"], **QUICK, generator=spawn(1))
    assert fitted.active == ()
    assert str(fitted).startswith("Field data look like clean images: no condition was found.")


@pytest.mark.slow
def test_more_data_of_the_same_source_rarely_have_a_condition() -> None:
    """Small fields, where chance is largest: at most 1 of 20."""
    everything, found = load_digits(size=14).train, []
    for seed in range(20):
        parts = everything[torch.randperm(len(everything), generator=spawn(seed))].split(field=0.15, clean=0.85)
        found.append(fit_conditions(under(parts["field"], {}), parts["clean"], **QUICK, generator=spawn(seed)).active)
    assert sum(names != () for names in found) <= 1, found


# Laws


def test_the_same_generator_gives_the_same_fit_and_it_can_be_loaded_from_disk(tmp_path) -> None:
    first, second = (fit_conditions(small(0), small(1), widest=WIDEST, **TINY, generator=spawn(2)) for _ in range(2))
    assert first == second
    results.save(first, tmp_path / "conditions.json")
    assert results.load(tmp_path / "conditions.json", FittedConditions) == first


def test_labels_of_the_field_are_ignored() -> None:
    field = small(0)
    other = replace(field, y=None)
    a, b = (fit_conditions(f, small(1), widest=WIDEST, **TINY, generator=spawn(2)) for f in (field, other))
    assert a == b


def test_classes_that_clean_images_lack_have_no_share() -> None:
    field, clean = small(1), small(2)
    fitted = fit_conditions(field, replace(clean, y=3 * clean.y + 1), widest=WIDEST, **TINY, generator=spawn(3))
    assert len(fitted.priors) == 5
    assert [fitted.priors[c] for c in (0, 2, 3)] == [0, 0, 0]
    assert sum(fitted.priors) == pytest.approx(1)


def test_clean_images_need_no_labels_and_given_priors_are_kept() -> None:
    plain = fit_conditions(small(0), replace(small(1), y=None), widest=WIDEST, **TINY, generator=spawn(2))
    assert plain.priors == ()
    given = fit_conditions(small(0), small(1), widest=WIDEST, priors=[0.25, 0.75], **TINY, generator=spawn(2))
    assert given.priors == (0.25, 0.75)


def test_other_bounds_give_the_same_fit() -> None:
    a, b = small(0), small(1)
    plain = fit_conditions(a, b, widest=WIDEST, **TINY, generator=spawn(2))
    wide = replace(WIDEST, bounds=(-2.0, 6.0))
    other = fit_conditions(
        replace(a, x=a.x * 8 - 2), replace(b, x=b.x * 8 - 2), widest=wide, **TINY, generator=spawn(2)
    )
    assert other.recipe.bounds == (-2.0, 6.0)
    assert other.before == pytest.approx(plain.before, rel=0.05)


def test_a_fixed_severity_and_the_chance_of_absence_stay(parts) -> None:
    widest = Recipe(severities={"blur": fixed(0.7), "rotation": normal(30, absent=0.4)}, padding="zeros")
    field = under(parts["field"], {"blur": fixed(0.7), "rotation": normal(25, absent=0.4)})
    fitted = fit_conditions(field, parts["clean"], widest=widest, **QUICK, generator=spawn(2))
    assert fitted.recipe.severities["blur"] == fixed(0.7)
    assert fitted.recipe.severities["rotation"].absent == 0.4
    assert fitted.recipe.padding == "zeros"
    assert {p.condition for p in fitted.parameters} == {"rotation"}


@pytest.mark.parametrize("severity", [normal(30), normal(0.2, mean=0.1), half_normal(2), uniform(0, 3), uniform(-1, 2)])
def test_every_fit_lies_inside_the_widest(severity: Severity) -> None:
    parameters = free_parameters("rotation", severity)
    for t in np.random.default_rng(0).uniform(size=(50, len(parameters))):
        found = {u.name: u.value(v) for u, v in zip(parameters, t, strict=True)}
        narrowed = _narrowed(severity, found)
        assert severity.low <= narrowed.low <= narrowed.high <= severity.high
        assert narrowed.std <= severity.std
    nothing = _narrowed(severity, {u.name: u.value(u.none) for u in parameters})
    assert nothing.low == nothing.high == pytest.approx(0)


def test_families_have_the_documented_free_parameters() -> None:
    names = {
        s: [u.name for u in free_parameters("rotation", s)]
        for s in (normal(3), half_normal(3), uniform(0, 2), uniform(-1, 2), fixed(4))
    }
    assert list(names.values()) == [["mean", "std"], ["std"], ["high"], ["low", "high"], []]


def test_the_mixture_of_class_means_is_found_exactly(generator) -> None:
    means = torch.randn(30, 4, generator=generator).double().numpy()
    priors = np.array([0.5, 0.0, 0.2, 0.3])
    assert mixture(means, means @ priors, np.full(4, 0.25)) == pytest.approx(priors, abs=1e-4)


def test_a_mixture_that_comes_near_nothing_stays_near_the_usual_one(generator) -> None:
    means = torch.randn(30, 4, generator=generator).double().numpy()
    usual = np.array([0.4, 0.3, 0.2, 0.1])
    far = means @ np.array([1.0, 0.0, 0.0, 0.0]) + 100 * torch.randn(30, generator=generator).double().numpy()
    shares = mixture(means, far, usual)
    assert shares.sum() == pytest.approx(1)
    assert shares == pytest.approx(usual, abs=0.05)


@pytest.mark.parametrize("shape", [(5, 1, 8, 8), (6, 3, 17, 33), (4, 1, 64, 50)])
def test_appearances_are_finite_for_any_shape_and_rows_do_not_see_each_other(shape, generator) -> None:
    x = torch.rand(shape, generator=generator)
    x[0] = 0.5  # nothing to see
    descriptor = ImageDescriptor.of(torch.cat([x, torch.rand(60, *shape[1:], generator=generator)]), (0.0, 1.0))
    phi = descriptor(x)
    assert phi.shape[0] == shape[0]
    assert np.isfinite(phi).all()
    assert np.abs(phi).max() <= math.sqrt(2) + 1e-6
    assert descriptor(x[2:4]) == pytest.approx(phi[2:4], abs=2e-3)


def test_quick_progress_is_shown_on_a_terminal_only(on_terminal, capsys) -> None:
    options = {"widest": WIDEST, "simulated": 60, "resamples": 20}
    for terminal, progress in ((True, True), (True, False), (False, True)):
        on_terminal(terminal)
        fit_conditions(small(0), small(1), **options, progress=progress, generator=spawn(2))
        shown = capsys.readouterr()
        assert shown.out == ""
        assert ("estimating conditions (2 simulations" in shown.err) == (terminal and progress)


# Rejected input


def test_bad_input_is_rejected_with_a_sentence() -> None:
    a, b = small(0), small(1)
    many = replace(b, y=torch.arange(60))
    for field, clean, options, words in (
        (Samples(torch.rand(60, 5)), b, {}, "conditions are for images: field must be"),
        (Samples(torch.rand(60, 5)), Samples(torch.rand(60, 5)), {"widest": None}, "conditions are for images"),
        (replace(a, x=a.x[:1].repeat(60, 1, 1, 1)), b, {}, "images hardly differ from each other; give more"),
        (*[Samples(torch.rand(60, 1, 8, 120))] * 2, {"widest": None}, "8 by 120 pixels are too narrow"),
        (a, Samples(torch.rand(60, 1, 6, 9)), {}, "clean must be .* at least 8 by 8 pixels"),
        (a[:40], b, {}, "at least 50 field images are needed, got 40; give more"),
        (replace(a, x=0 * a.x), b, {}, r"each of the field images has one value throughout \(all black, say\)"),
        (a, replace(b, x=0 * b.x + 0.5), {}, "each of the clean images has one value throughout"),
        (a, small(1, 30), {}, "at least 50 clean images are needed, got 30"),
        (replace(a, x=a.x * 255), b, {}, "field images must lie within bounds .* rescale them"),
        (a, replace(b, x=b.x / 0), {}, "clean images must lie within bounds .* got values from inf to inf"),
        (a, Samples(torch.rand(60, 1, 10, 10)), {}, "field and clean inputs must have one shape"),
        (a, b, {"priors": [0.5, 0.6]}, "priors must be 0 or more and sum to 1"),
        (a, b, {"priors": [0.5, 0.25, 0.25]}, "one number for each class that the data have, 0 to 1, got 3"),
        (a, replace(b, y=b.labels * 2), {"priors": [0.5, 0.2, 0.3]}, "positive prior must occur .*, and 1 do"),
        (a, replace(b, y=None), {"priors": [1.0]}, "priors need labels on the clean images"),
        (a, many, {}, "at most 50 classes, the clean images have 60; give priors"),
        (
            a,
            b,
            {"widest": Recipe(severities={"blur": uniform(0.5, 2)})},
            "must hold 0, no change, got 0.5 to 2 for blur",
        ),
        (a, b, {"widest": Recipe(severities={"blur": fixed(1)})}, "at least one condition that is not fixed"),
        (a, b, {"simulated": 3}, "simulated must be at least 50"),
        (a, b, {"resamples": 3}, "resamples must be at least 20"),
        (a, b, {"confidence": 1.0}, "confidence must be between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=words):
            fit_conditions(field, clean, **{"widest": WIDEST, **TINY, "generator": spawn(0), **options})


def test_principal_directions_of_dead_features_are_finite() -> None:
    rows = torch.randn(500, 60, generator=spawn(0)) * torch.logspace(-30, 0, 60)  # as those of a network's idle units
    rows[:, ::3] = 0
    axes = _principal(rows, 8)
    assert bool(axes.isfinite().all())
    assert torch.allclose(axes.T @ axes, torch.eye(8), atol=1e-5)


def test_weighted_images_resemble_more_images_of_their_class() -> None:
    """The weighted mean of what the components predict is that of all images, so it varies less."""
    generator = np.random.default_rng(0)
    y = np.repeat([0, 1], 3000)
    everything = generator.normal(size=(6000, 30)) * np.linspace(3, 0.1, 30) + y[:, None]
    errors: dict[str, list[float]] = {"plain": [], "weighted": []}
    for _ in range(20):
        rows = np.concatenate([generator.choice(3000, 150, replace=False) + 3000 * c for c in (0, 1)])
        weights = representative(everything[rows], y[rows], everything, y)
        assert weights.min() > 0
        seen = np.tanh(everything[rows] @ np.linspace(1, 0, 30))  # as conditions and descriptor would make it
        for name, w in (("plain", np.ones(300)), ("weighted", weights)):
            for c in (0, 1):
                truth = np.tanh(everything[y == c] @ np.linspace(1, 0, 30)).mean()
                errors[name].append(float(np.average(seen[y[rows] == c], weights=w[y[rows] == c]) - truth))
    plain, weighted = (np.square(errors[name]).mean() for name in ("plain", "weighted"))
    assert weighted < 0.6 * plain
    assert np.allclose(representative(everything, y, everything, y), 1)
