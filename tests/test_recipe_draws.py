"""Draws of a recipe: the laws of fuzzers, the dense region, and cases that can be made again."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from operant import Classifier, Samples, Suite, spawn
from operant.conditions import Recipe, fixed, half_normal, normal, uniform
from operant.generate import RecipeDraws, replay
from operant.testing import check_fuzzer, toy_classifier, toy_seeds

SMOOTH = Recipe(severities={"rotation": normal(30), "blur": uniform(0, 1.0), "gaussian_noise": half_normal(0.2)})
ROUGH = Recipe(
    severities={"jpeg": uniform(1, 20, absent=0.3), "impulse_noise": half_normal(0.1), "brightness": fixed(0.1)}
)
RECIPES = pytest.mark.parametrize("recipe", [SMOOTH, ROUGH], ids=["smooth", "rough"])


@pytest.fixture(scope="module")
def model() -> Classifier:
    return toy_classifier()


def seeds(model: Classifier, n: int = 200) -> Samples:
    return toy_seeds(model, n=n)


@RECIPES
@pytest.mark.parametrize("per_seed", [1, 3])
def test_the_laws_of_fuzzers_hold(recipe: Recipe, per_seed: int) -> None:
    check_fuzzer(RecipeDraws(recipe=recipe, per_seed=per_seed))


@RECIPES
def test_every_seed_keeps_its_cases_whether_they_pass_or_fail(model: Classifier, recipe: Recipe) -> None:
    given = seeds(model)
    found = RecipeDraws(recipe=recipe, per_seed=3)(model, given, generator=spawn(0))
    assert torch.equal(found.seed, given.ids.repeat_interleave(3))
    assert 0 < len(found.failures()) < len(found) == 600
    assert torch.equal(found["margin"] > 0, found.prediction != found.label)


@RECIPES
def test_cases_can_be_made_again_bit_for_bit(model: Classifier, recipe: Recipe, tmp_path: Path) -> None:
    found = RecipeDraws(recipe=recipe, per_seed=2)(model, seeds(model), generator=spawn(1))
    assert torch.equal(replay(found, recipe), found.x)
    again = Suite.open(found.save(tmp_path / "suite"))
    assert torch.equal(replay(again[::3], recipe), found.x[::3])
    values = torch.stack([found[name] for name in recipe.names], 1)
    drawn = replace(recipe.neutral(len(found)), values=values, seeds=found["noise_seed"].long())
    assert torch.equal(recipe.log_prob(drawn), found["log_prob"])


@pytest.mark.parametrize("dense", [0.3, 0.9])
def test_the_dense_region_holds_that_share_of_the_recipe(dense: float) -> None:
    """Two normal severities: the region of the largest density is an ellipse with a known radius."""
    recipe = Recipe(severities={"rotation": normal(10, low=-100, high=100), "shear": normal(0.1, low=-2, high=2)})
    radius = math.sqrt(-2 * math.log(1 - dense))
    drawn = RecipeDraws(recipe=recipe, dense=dense).draw(5000, generator=spawn(2))
    z = (drawn.values / torch.tensor([10.0, 0.1])).norm(dim=1)
    assert float(z.max()) == pytest.approx(radius, rel=0.05)
    inside = recipe.draw(5000, generator=spawn(3)).values / torch.tensor([10.0, 0.1])
    expected = inside.norm(dim=1)[inside.norm(dim=1) <= radius]
    assert float(z.mean()) == pytest.approx(float(expected.mean()), rel=0.05)  # the same draws, without the tail


def test_all_draws_are_dense_where_severities_are_uniform_or_nothing_is_left_out() -> None:
    flat = Recipe(severities={"rotation": uniform(-20, 20), "blur": uniform(0, 1)})
    for draws in (RecipeDraws(recipe=flat), RecipeDraws(recipe=SMOOTH, dense=1.0)):
        drawn, plain = draws.draw(500, generator=spawn(4)), draws.recipe.draw(500, generator=spawn(4))
        assert torch.equal(drawn.values, plain.values)
        assert torch.equal(drawn.seeds, plain.seeds)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"per_seed": 0}, "per_seed must be at least 1"),
        ({"dense": 0.0}, "dense"),
        ({"dense": 1.2}, "dense"),
        ({"recipe": Recipe(severities={})}, "at least one condition"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RecipeDraws(**({"recipe": SMOOTH} | options))  # type: ignore[arg-type]


def test_a_recipe_of_other_bounds_is_refused(model: Classifier) -> None:
    with pytest.raises(ValueError, match="must have the model's bounds"):
        RecipeDraws(recipe=replace(SMOOTH, bounds=(0.0, 2.0)))(model, seeds(model), generator=spawn(0))
