"""The default moves and radii of a campaign."""

from functools import partial

import pytest
import torch
from torch import nn

from operant import Classifier, Samples, spawn
from operant.conditions import Recipe, normal
from operant.generate import (
    PGD,
    ConditionMove,
    GeneticMove,
    GradientMove,
    RecipeDraws,
    UncertaintyFuzz,
    default_moves,
    default_radii,
    unguided,
)

IMAGES = Samples(torch.rand(50, 1, 4, 5, generator=spawn(0, "images")))
TABLE = Samples(torch.rand(50, 20, generator=spawn(0, "table")))


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("train", [TABLE, IMAGES], ids=["table", "images"])
def test_default_radii_grow_with_the_inputs(norm, train):
    one, three = (default_radii(Samples(k * train.x), norm=norm) for k in (1, 3))
    assert 0 < one[0] < one[1]
    assert three == pytest.approx([3 * r for r in one], rel=0.06)  # two digits are kept


def test_default_radii_of_images_are_shares_of_their_range():
    x = torch.zeros(3, 1, 4, 4)
    x[0, 0, 0, 0] = 2.0
    assert default_radii(Samples(x)) == pytest.approx([0.02 * 2 * 4, 0.05 * 2 * 4])
    assert default_radii(Samples(x), norm="linf") == pytest.approx([0.02 * 2, 0.05 * 2])


def test_default_radii_of_tables_do_not_depend_on_the_number_of_columns():
    x = torch.linspace(0, 8, 101)[:, None]  # an interquartile range of 4
    for columns in (1, 30):
        assert default_radii(Samples(x.repeat(1, columns))) == pytest.approx([0.2, 0.4])
    assert default_radii(Samples(x.repeat(1, 4)), norm="linf") == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("columns", [4, 40])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_cases_of_tables_keep_their_labels_at_the_default_radii(columns, norm):
    """Two Gaussian classes and as many columns of heavy-tailed noise; the attacked model is the best rule itself."""
    generator, n = spawn(0, "table"), 2000
    y = torch.randint(2, (n,), generator=generator)
    apart = torch.full((columns,), 2.2 / columns**0.5)  # from the rule, in standard deviations
    z = (2 * y[:, None] - 1) * apart + torch.randn(n, columns, generator=generator)
    noise = torch.tan(1.5 * (2 * torch.rand(n, columns, generator=generator) - 1))
    x = torch.cat([z, noise], 1)
    table = Samples((x - x.mean(0)) / x.std(0), y)
    rule = nn.Linear(2 * columns, 2)
    with torch.no_grad():
        weight = torch.cat([apart, torch.zeros(columns)]) * x.std(0)
        rule.weight.copy_(torch.stack([-weight, weight]))
        rule.bias.copy_(torch.stack([-(weight / x.std(0)) @ x.mean(0), (weight / x.std(0)) @ x.mean(0)]))
    model = Classifier(rule, bounds=(-100, 100))
    assert model.accuracy(table) > 0.97
    seeds = model.correct(table)
    for radius in default_radii(table, norm=norm):
        cases = PGD(radius=radius, norm=norm, steps=5)(model, seeds, generator=spawn(0, "pgd"))
        assert len(cases.failures()) < 0.05 * len(seeds)  # each of which has lost its label
    by_range = 0.05 * float(table.x.max() - table.x.min()) * (2 * columns) ** 0.5
    cases = PGD(radius=by_range, norm="l2", steps=5)(model, seeds, generator=spawn(0, "pgd"))
    assert len(cases.failures()) > 0.2 * len(seeds)


def test_columns_that_hardly_vary_do_not_make_radii_vanish():
    """Columns of only zeros, and of rare ones, have no interquartile range."""
    x = torch.zeros(100, 4)
    x[::10, 1] = 1
    assert default_radii(Samples(x)) == pytest.approx([0.015, 0.03], rel=0.06)
    x[:, 0] = torch.linspace(0, 8, 100)
    assert default_radii(Samples(x)) == pytest.approx([0.2, 0.4], rel=0.06)
    with pytest.raises(ValueError, match="training inputs must differ"):
        default_radii(Samples(torch.ones(9, 4)))


def test_moves_come_in_a_fixed_order():
    recipe = Recipe(severities={"rotation": normal(12)})
    own = {"pgd": partial(unguided, PGD(radius=0.1))}
    options = {"climb": True, "genetic": True, "patterns": ["HL", "LL", "HL"]}
    moves = default_moves(IMAGES, recipe=recipe, radii=[0.3, 0.1], norm="linf", own=own, **options)
    assert list(moves) == [
        "conditions",
        "climb",
        "gradient-0.3",
        "gradient-0.1",
        "genetic",
        "uncertainty-HL",
        "uncertainty-LL",
        "pgd",
    ]
    made = {name: make(naturalness=None) for name, make in moves.items() if name != "genetic"}
    assert made["conditions"] == RecipeDraws(recipe=recipe, per_seed=8)
    assert made["climb"] == ConditionMove(recipe=recipe, naturalness=None)
    assert made["gradient-0.1"] == GradientMove(radius=0.1, norm="linf", steps=10, naturalness=None)
    spread = float(IMAGES.x.max() - IMAGES.x.min())
    genetic = moves["genetic"]
    assert (genetic.func, genetic.keywords) == (GeneticMove, {"radius": 0.3 * spread})  # needs a fitted naturalness
    assert made["uncertainty-LL"] == UncertaintyFuzz(pattern="LL", radius=0.1 * spread, population=50, generations=20)
    assert made["pgd"] == PGD(radius=0.1)


def test_images_with_conditions_are_searched_by_draws_alone():
    assert list(default_moves(IMAGES, recipe=Recipe(severities={"rotation": normal(12)}))) == ["conditions"]
    with pytest.raises(ValueError, match="climb searches the severities of conditions, but there are none"):
        default_moves(IMAGES, climb=True)


def test_only_gradient_searches_without_conditions():
    for train in (TABLE, IMAGES):
        moves = default_moves(train, steps=7)
        radii = default_radii(train)
        assert list(moves) == [f"gradient-{radius:g}" for radius in radii]
        assert [make.keywords for make in moves.values()] == [
            {"radius": radius, "norm": "l2", "steps": 7} for radius in radii
        ]


def test_wrong_moves_are_rejected():
    with pytest.raises(ValueError, match=r"^genetic is for images, but inputs have the shape \(20,\)"):
        default_moves(TABLE, genetic=True)
    with pytest.raises(ValueError, match="^patterns is for images"):
        default_moves(TABLE, patterns=["HL"])
    with pytest.raises(ValueError, match="there must be a move to search with"):
        default_moves(IMAGES, radii=[])
    with pytest.raises(ValueError, match=r"own moves must have names of their own, got gradient-0\.1"):
        default_moves(IMAGES, radii=[0.1], own={"gradient-0.1": partial(unguided, PGD(radius=0.1))})
    own = {"pgd": partial(unguided, PGD(radius=0.1))}
    assert list(default_moves(IMAGES, radii=[], own=own)) == ["pgd"]
