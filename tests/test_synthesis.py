"""Laws of synthetic operational data: classes as asked for, every row can be reproduced, bad input is rejected."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant import Samples, load_digits, results, spawn
from operant.conditions import DrawnConditions, Recipe, apply, fixed, normal, uniform
from operant.profile.synthesis import (
    CHUNK,
    ClassVAEs,
    FromImages,
    FromModel,
    FromSimulator,
    Source,
    SourceBatch,
    Synthesised,
    checked_priors,
    fit_class_vaes,
    remake,
    synthesise,
)

DIGITS = load_digits()
RECIPE = Recipe(severities={"rotation": normal(12), "gaussian_noise": uniform(0, 0.2)})
PRIORS = (0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.05, 0.0, 0.0)
THREE = (0.5, 0.4, 0.1)


def spots(labels: Tensor, generator: torch.Generator) -> Tensor:
    """A generative model that one can check by eye: the class is the brightness, plus a little noise."""
    noise = 0.1 * torch.rand(len(labels), 1, 4, 4, generator=generator)
    return (labels.view(-1, 1, 1, 1) / 3 + noise).clamp(0, 1)


def stripes(table: dict[str, Tensor]) -> Samples:
    """A simulator: a stripe of some width and grey; a wide one is class 1, a wide and bright one class 2."""
    width, grey = table["width"], table["grey"]
    columns = torch.arange(6) < width[:, None]
    noise = 0.1 * ((table["seed"] % 97) / 97)
    x = (columns * grey[:, None] * 0.9 + noise[:, None]).float().view(-1, 1, 1, 6).expand(-1, 1, 6, 6)
    return Samples(x.contiguous(), (width > 3).long() + ((width > 3) & (grey > 0.8)).long())


SOURCES: dict[str, tuple[Source, Sequence[float]]] = {
    "images": (FromImages(images=DIGITS.train, recipe=RECIPE), PRIORS),
    "model": (FromModel(sample=spots, classes=3), THREE),
    "simulator": (FromSimulator(simulate=stripes, parameters={"width": uniform(0, 6), "grey": uniform(0, 1)}), THREE),
}


@pytest.fixture(params=SOURCES)
def made(request) -> tuple[Source, Synthesised]:
    source, priors = SOURCES[request.param]
    return source, synthesise(source, 600, priors=priors, generator=spawn(0))


def equal(a: Synthesised, b: Synthesised) -> bool:
    tensors = [(a.x, b.x), (a.y, b.y), (a.chunk, b.chunk), (a.place, b.place)]
    tensors += [(a.parameters[name], b.parameters[name]) for name in a.parameters]
    tensors += [] if a.source is None or b.source is None else [(a.source, b.source)]
    same = all(torch.equal(v, w) for v, w in tensors) and list(a.parameters) == list(b.parameters)
    return same and (a.method, a.priors, a.source is None) == (b.method, b.priors, b.source is None)


@pytest.mark.parametrize("name", SOURCES)
def test_classes_occur_as_often_as_their_priors_say(name: str) -> None:
    source, priors = SOURCES[name]
    made = synthesise(source, 5000, priors=priors, generator=spawn(1))
    share = made.y.bincount(minlength=len(priors)) / 5000
    assert (share - torch.tensor(priors)).abs().max() < 0.03  # four standard errors
    assert bool((share[torch.tensor(priors) == 0] == 0).all())


def test_without_priors_the_images_have_their_own() -> None:
    few = Samples.concat([DIGITS.train[DIGITS.train.labels == 3][:90], DIGITS.train[DIGITS.train.labels == 1][:10]])
    made = synthesise(FromImages(images=few, recipe=RECIPE), 4000, generator=spawn(2))
    assert made.y.unique().tolist() == [1, 3]
    assert float((made.y == 1).double().mean()) == pytest.approx(0.1, abs=0.02)
    assert made.priors is None


def test_every_image_of_a_class_is_as_likely_as_the_others() -> None:
    five = DIGITS.train[(DIGITS.train.labels == 0).nonzero().flatten()[:5]]
    made = synthesise(FromImages(images=five, recipe=Recipe(severities={})), 5000, generator=spawn(3))
    counts = torch.stack([(made.source == i).sum() for i in five.ids]) / 5000
    assert counts.tolist() == pytest.approx([0.2] * 5, abs=0.03)


def test_rows_are_labelled_samples_in_bounds(made) -> None:
    source, rows = made
    samples = rows.samples
    assert len(rows) == len(samples) == 600
    assert torch.equal(samples.labels, rows.y)
    assert rows.method == source.method
    assert 0 <= float(rows.x.min()) <= float(rows.x.max()) <= 1
    assert all(len(column) == 600 for column in rows.parameters.values())
    assert f"600 inputs of shape {tuple(samples.shape)} by {source.method}" in str(rows)


def test_the_same_generator_gives_the_same_rows_and_another_gives_others(made) -> None:
    source, rows = made
    assert equal(rows, synthesise(source, 600, priors=rows.priors, generator=spawn(0)))
    assert not torch.equal(rows.x, synthesise(source, 600, priors=rows.priors, generator=spawn(9)).x)


def test_more_rows_start_with_the_same_rows(made) -> None:
    source, rows = made
    more = synthesise(source, 3 * CHUNK, priors=rows.priors, generator=spawn(0))
    assert equal(rows, more[:600])


@given(picked=st.lists(st.integers(0, 599), min_size=1, max_size=6), name=st.sampled_from(list(SOURCES)))
@settings(max_examples=15)
def test_any_rows_are_reproduced_bit_for_bit(picked: list[int], name: str) -> None:
    source, priors = SOURCES[name]
    rows = synthesise(source, 600, priors=priors, generator=spawn(0))[picked]
    assert torch.equal(remake(source, rows), rows.x)


def test_rows_can_be_loaded_from_disk_and_are_reproduced(made, tmp_path) -> None:
    source, rows = made
    results.save(rows, tmp_path / "made.json")
    back = results.load(tmp_path / "made.json", Synthesised)
    assert equal(rows, back)
    assert torch.equal(remake(source, back[[1, 500]]), rows.x[[1, 500]])


def test_a_row_names_its_image_and_its_conditions() -> None:
    """With them alone, without the chunk, the row is made again too."""
    rows = synthesise(FromImages(images=DIGITS.train, recipe=RECIPE), 40, priors=PRIORS, generator=spawn(4))
    places = torch.stack([(DIGITS.train.ids == i).nonzero()[0, 0] for i in rows.source])
    values = torch.stack([rows.parameters[name] for name in RECIPE.names], 1)
    drawn = DrawnConditions(names=RECIPE.names, values=values, seeds=rows.parameters["noise_seed"])
    assert torch.equal(apply(DIGITS.train.x[places], drawn), rows.x)
    assert torch.equal(DIGITS.train.labels[places], rows.y)


def test_a_simulator_sees_the_parameters_that_the_rows_remember() -> None:
    source, priors = SOURCES["simulator"]
    rows = synthesise(source, 300, priors=priors, generator=spawn(5))
    again = stripes(rows.parameters)
    assert torch.equal(again.x, rows.x)
    assert torch.equal(again.labels, rows.y)


def test_parameters_keep_to_their_distributions() -> None:
    parameters = {"width": uniform(2, 5), "grey": fixed(0.3), "tilt": normal(1, mean=4, absent=0.5)}
    rows = synthesise(FromSimulator(simulate=stripes, parameters=parameters), 4000, generator=spawn(6)).parameters
    assert 2 <= float(rows["width"].min()) < 2.1 < 4.9 < float(rows["width"].max()) <= 5
    assert rows["grey"].unique().tolist() == [0.3]
    assert float((rows["tilt"] == 0).double().mean()) == pytest.approx(0.5, abs=0.04)
    assert float(rows["tilt"][rows["tilt"] != 0].mean()) == pytest.approx(4, abs=0.1)
    assert list(rows) == [*parameters, "seed"]


def test_a_source_that_draws_from_the_global_stream_is_still_reproduced() -> None:
    source = FromModel(sample=lambda labels, _: torch.rand(len(labels), 3), classes=2)
    rows = synthesise(source, 20, generator=spawn(7))
    assert torch.equal(remake(source, rows), rows.x)


def test_another_source_is_detected() -> None:
    source, priors = SOURCES["images"]
    rows = synthesise(source, 50, priors=priors, generator=spawn(8))
    other = FromImages(images=DIGITS.train, recipe=Recipe(severities={"rotation": normal(5)}))
    with pytest.raises(ValueError, match="of 50 rows differ from before"):
        remake(other, rows)


def test_anything_that_fits_is_a_source() -> None:
    @dataclass(frozen=True)
    class Mine:
        method = "mine"
        count: int = CHUNK

        def __call__(self, n: int, *, priors: Sequence[float] | None, generator: torch.Generator) -> SourceBatch:
            return SourceBatch(x=torch.rand(self.count, 2, generator=generator), y=torch.arange(n) % 2)

    rows = synthesise(Mine(), 300, generator=spawn(0))
    assert rows.method == "mine"
    assert torch.equal(remake(Mine(), rows[250:]), rows.x[250:])
    with pytest.raises(ValueError, match="must return 256 rows of everything, got \\[9\\]"):
        synthesise(Mine(9), 300, generator=spawn(0))


def test_one_vae_per_class_draws_inputs_of_that_class(tmp_path) -> None:
    two = DIGITS.train[DIGITS.train.labels < 2]
    vaes = fit_class_vaes(two, latent=4, epochs=50, generator=spawn(0), progress=False)
    source = FromModel(sample=vaes, classes=2)
    rows = synthesise(source, 300, priors=(0.25, 0.75), generator=spawn(1))
    means = torch.stack([two.x[two.labels == c].mean(0) for c in (0, 1)]).flatten(1)
    nearest = torch.cdist(rows.x.flatten(1), means).argmin(1)
    assert float((nearest == rows.y).double().mean()) > 0.9
    spread = rows.x[rows.y == 1].flatten(1).std(0).norm() / two.x[two.labels == 1].flatten(1).std(0).norm()
    assert 0.4 < float(spread) < 1.2  # neither one image over and over, nor noise
    assert torch.equal(remake(source, rows[[3, 280]]), rows.x[[3, 280]])
    results.save(vaes, tmp_path / "vaes.json")
    again = FromModel(sample=results.load(tmp_path / "vaes.json", ClassVAEs), classes=2)
    assert torch.equal(remake(again, rows), rows.x)


NO_CLASS_4 = DIGITS.train[DIGITS.train.labels != 4]


@pytest.mark.parametrize(
    ("name", "changes", "priors", "words"),
    [
        ("images", {}, [0.2] * 10, "priors must be 0 or more and sum to 1, .* with the sum 2"),
        ("images", {}, [1.1, -0.1, *[0.0] * 8], "priors must be 0 or more and sum to 1"),
        ("images", {}, [float("nan"), *[0.1] * 9], "priors must be 0 or more and sum to 1"),
        ("images", {}, [0.1] * 9 + [0.05, 0.05], "one number for each class that the data have, 0 to 9, got 11"),
        ("images", {}, [0.5, 0.5], "one number for each class that the data have, 0 to 9, got 2"),
        ("images", {"images": NO_CLASS_4}, [0.1] * 10, "a class with a positive prior must occur .*, and 4 do"),
        ("images", {"images": replace(NO_CLASS_4, classes=tuple("abcdefghij"))}, [0.1] * 10, ", and e do not"),
        ("images", {"images": replace(DIGITS.train, y=None)}, None, "no labels"),
        ("images", {"images": Samples(torch.rand(9, 5), torch.zeros(9).long())}, None, "conditions are for images"),
        ("model", {}, [0.5, 0.5], "one number for each class that the data have, 0 to 2, got 2"),
        (
            "model",
            {"bounds": (0.5, 1.0)},
            None,
            "inputs of the generative model must lie within bounds .*, got values from .* to .*; rescale",
        ),
        ("model", {"sample": lambda labels, _: spots(labels[1:], spawn(0))}, None, "input for each of 256 rows"),
        ("simulator", {}, [0.5, 0.6, 0.0], "priors must be 0 or more and sum to 1"),
        ("simulator", {}, [0.4, 0.3, 0.0, 0.3], "did not make enough inputs of classes \\[3\\] in 25600 runs"),
        ("simulator", {"simulate": lambda t: Samples(stripes(t).x)}, None, "no labels"),
        ("simulator", {"simulate": lambda t: replace(stripes(t), x=stripes(t).x / 0)}, None, "contain NaN"),
    ],
)
def test_bad_input_is_rejected_with_a_sentence(
    name: str, changes: dict, priors: list[float] | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        synthesise(replace(SOURCES[name][0], **changes), 10, priors=priors, generator=spawn(0))


def test_no_rows_are_rejected() -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        synthesise(SOURCES["model"][0], 0, generator=spawn(0))


def test_a_class_that_is_not_wanted_need_not_occur() -> None:
    assert checked_priors([0.5, 0.0, 0.5], torch.tensor([0, 2, 2])).tolist() == [0.5, 0.0, 0.5]
    source, _ = SOURCES["images"]
    rows = synthesise(replace(source, images=NO_CLASS_4), 100, priors=[0.5, 0.5, *[0.0] * 8], generator=spawn(0))
    assert rows.y.unique().tolist() == [0, 1]
