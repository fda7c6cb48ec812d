"""DeepXplore: move each seed until several models disagree about it, towards neurons not covered yet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import process_time

import torch
from torch import Tensor

from operant.data import Samples
from operant.generate.baselines._network import Network, NeuronReading, Objective
from operant.generate.baselines._seed_queues import neuron_coverage
from operant.generate.baselines.exploration import Exploration
from operant.generate.engine import CaseList, Goal, column, steepest
from operant.model import Classifier
from operant.rng import normal_like
from operant.suite import Suite
from operant.validation import check_at_least, check_from_below, check_nonnegative, check_one_of, check_positive

SIDES = {"light": 1.0, "occlusion": 0.36, "blackout": 0.21}  # share of an image's side; released: 10 and 6 of 28


@dataclass(frozen=True, kw_only=True)
class DeepXplore:
    """Differential testing: change each seed, within a constraint, until the models disagree.

        objective(x) = Σ_{i≠j} F_i(x)[c] − weight_diff · F_j(x)[c] + weight_coverage · Σ_i f_{n_i}(x)        (1)
        x ← clip(x + step · constrained(∇objective))                                                         (2)

    F_i is the i-th model's logit of c, the class that all models predict at the seed, j the model that should deviate,
    and n_i an uncovered neuron of the i-th model: one whose value, scaled over its layer, never exceeded ``threshold``.
    The constraints change

    - ``"light"``: all values by the same amount, so that a case is the seed, brighter or darker, clipped to bounds;
    - ``"occlusion"``: one rectangle, placed at random for each seed;
    - ``"blackout"``: one small square per step, placed at random, which gets darker if its gradient is negative on
      average and else stays: many small squares are darkened, and nothing ever gets brighter.

    Models that disagree show, without any label, that one of them is wrong, but not which; models that make the same
    mistake show nothing. We start only from seeds that every model classifies correctly, so that c is the label. A
    case is an input on which the models disagree: then at least one fails by the seed's label, and `Suite.failures`
    are those cases where ``model`` does. An input that all models give the same wrong class is not a case, and the
    search continues from it. Columns: ``other1``, ``other2``, …: predictions of the others; ``row``: which of the
    seed's model rows it was; ``gain``: how many neurons, of all models, it covered first from its seed's view.

    All seeds advance together; one whose case is found leaves. Coverage is shared, and every input counts, the seeds
    too: a seed's view is what it and the seeds before it have covered so far. Taken one at a time, it would include all
    that the seeds before it ever cover, so that here the first steps aim at neurons that an earlier seed is about to
    reach. In both versions later seeds do not change a seed's case.

    Differences between the paper, the released program and this class:

    - F is the paper's confidence in (1); the program takes the logit, and so do we: where the softmax is saturated,
      confidence has no gradient and (2) follows the neurons alone;
    - the program is usually run with weight_diff = 1. With logits and more than one other model the sum then outweighs
      the deviating model, similar models rise together, and random steps find more: the default is the number of all
      models;
    - and with weight_coverage = 0.1. A neuron of a feature map is a mean over many places with a small gradient, so
      that this hardly changes a step: the default is 10, with which coverage grows no slower than by random steps;
    - the paper draws n_i at every step, the program once per seed; we keep it until it is covered, then draw again;
    - the paper lets a random model deviate; a test of ``model`` should make ``model`` deviate;
    - the program counts as covered what its cases reach, we what all inputs reach: no step aims at covered neurons;
    - the program clips only when it saves, so that a saved image need not be the one that differed; we clip each step;
    - the program scales the gradient before its constraint, and is usually run with a step of ten times the range of
      its images; we scale to unit root mean square after it, over the values that may change, so that ``step`` is in
      input units for all.

    Args:
        others: models for the same task to compare with: same inputs, bounds, device and classes.
        constraint: ``"light"``, ``"occlusion"`` or ``"blackout"``; the last two need images.
        weight_diff: λ1 in the paper: weight of lowering c in one model, relative to raising it in each of the others
            (default: the number of all models).
        weight_coverage: λ2 in the paper: weight of the chosen neurons.
        step: root mean square of one step over the values that may change, in input units.
        threshold: above which a scaled neuron is covered.
        size: height and width of the rectangle in pixels (default: .36 of both sides of the image for occlusion, .21
            for blackout, as in the released program for 28 by 28).
        deviating: ``"model"``, or ``"any"`` for one drawn for each seed.
        direction: ``"gradient"``, or ``"random"`` to follow noise under the same constraint: the control.
        rows_per_seed: inputs passed through models per seed, all models counted, without the first and the last
            judgement of all models.
        seconds_per_seed: CPU seconds per seed, as one budget for all; the search ends with whichever budget is spent
            first. Results then depend on the machine's speed.

    References:
        | DeepXplore: Automated Whitebox Testing of Deep Learning Systems (Pei et al., 2017), Algorithm 1
        | https://arxiv.org/abs/1705.06640
    """

    others: tuple[Classifier, ...]
    constraint: str = "light"
    weight_diff: float | None = None
    weight_coverage: float = 10.0
    step: float = 0.1
    threshold: float = 0.5
    size: tuple[int, int] | None = None
    deviating: str = "model"
    direction: str = "gradient"
    rows_per_seed: int = 150
    seconds_per_seed: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.others, tuple) and self.others and all(isinstance(m, Classifier) for m in self.others)):
            raise ValueError(
                "DeepXplore compares models: others must be a tuple of at least one Classifier, beside the one that is "
                f"tested, got {self.others!r}"
            )
        check_one_of(tuple(SIDES), constraint=self.constraint)
        check_one_of(("model", "any"), deviating=self.deviating)
        check_one_of(("gradient", "random"), direction=self.direction)
        check_nonnegative(weight_coverage=self.weight_coverage)
        if self.weight_diff is not None:
            check_nonnegative(weight_diff=self.weight_diff)
        check_positive(step=self.step)
        if self.seconds_per_seed is not None:
            check_positive(finite=False, seconds_per_seed=self.seconds_per_seed)
        check_from_below(0, 1, threshold=self.threshold)
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"size must be a height and a width of at least 1 pixel, got {self.size}")
        least = 2 * (1 + len(self.others))
        check_at_least(least, rows_per_seed=self.rows_per_seed, advice="the seed and one step through each model")

    def __call__(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Suite:
        return self.explore(model, seeds, generator=generator).suite

    def explore(self, model: Classifier, seeds: Samples, *, generator: torch.Generator) -> Exploration:
        """The same search, with the growth of its coverage.

        ``coverage`` has one line per model, the tested one first: the share of its neurons that all inputs so far have
        covered. ``rows`` are means over the seeds; finished seeds spend no more.
        """
        model.check(seeds)
        models = (model, *self.others)
        _check_models(models, seeds)
        if self.constraint != "light":
            self.rectangle(seeds.x)
        seeds = seeds.to(model.device)
        search = _DifferentialSearch(self, models, seeds, generator)
        search.run()
        rows = torch.tensor(search.spent) / len(search.chosen)
        return Exploration(suite=self._suite(models, seeds, search), rows=rows, coverage=torch.tensor(search.shares).T)

    def rectangle(self, x: Tensor) -> tuple[int, int]:
        """Height and width of the rectangle for these images."""
        if x.ndim != 4:
            raise ValueError(
                f"{self.constraint} needs images (channels, height, width), got inputs of shape {tuple(x.shape[1:])}; "
                'take constraint="light"'
            )
        share = SIDES[self.constraint]
        h, w = self.size or (max(1, round(share * x.shape[2])), max(1, round(share * x.shape[3])))
        if h > x.shape[2] or w > x.shape[3]:
            raise ValueError(f"size must fit into images of {x.shape[2]} by {x.shape[3]} pixels, got {self.size}")
        return h, w

    def _suite(self, models: tuple[Classifier, ...], seeds: Samples, search: _DifferentialSearch) -> Suite:
        """The cases in seed order, after a final pass of every model."""
        skipped = len(seeds) - len(search.chosen)
        suite = search.cases.suite(models[0], method=f"deepxplore-{self.constraint}", skipped=skipped)
        x = suite.x.to(seeds.x.device)
        predictions = [other.predict(x).cpu() if len(x) else suite.prediction for other in models[1:]]
        columns = {f"other{i}": answer for i, answer in enumerate(predictions, 1)}
        differ = torch.stack([answer != suite.prediction for answer in predictions]).any(0)
        kept: Suite = suite.with_columns(**columns)[differ]
        return kept


class _DifferentialSearch:
    """The state of all seeds, and what is covered from the view of each."""

    def __init__(
        self, options: DeepXplore, models: tuple[Classifier, ...], seeds: Samples, generator: torch.Generator
    ) -> None:
        n, device = len(seeds), seeds.x.device
        self.options, self.model, self.generator = options, models[0], generator
        self.weight_diff = len(models) if options.weight_diff is None else options.weight_diff
        self.x0, self.y, self.x, self.moved = seeds.x, seeds.labels, seeds.x.clone(), torch.zeros_like(seeds.x)
        self.networks = [Network(m, neuron_coverage(m, seeds.x).neurons, seeds.x) for m in models]
        self.first = [torch.full((net.neurons.count,), n, device=device) for net in self.networks]
        self.goals = torch.full((len(models), n), -1, device=device)  # the neuron of each model that each row climbs to
        drawn = torch.randint(len(models), (n,), generator=generator, device=generator.device).to(device)
        self.deviating = drawn if options.deviating == "any" else torch.zeros_like(drawn)
        self.place = self._uniform(2)
        self.deadline = process_time() + (options.seconds_per_seed or math.inf) * n
        self.cases = CaseList(seeds, "gain", "row")
        self.spent: list[int] = []
        self.shares: list[list[float]] = []  # share of each model's neurons that is covered, after each step
        self.chosen = self._agreed()

    def run(self) -> None:
        """Spend the budget."""
        rows, each = self.chosen, len(self.networks)
        for row in range(each, self.options.rows_per_seed + 1, each):
            last = row + each > self.options.rows_per_seed or process_time() > self.deadline
            self._draw_goals(rows)
            logits, gain, gradient = self._evaluate(rows, climb=not last and self.options.direction == "gradient")
            self.spent.append(each * len(rows) + (self.spent[-1] if self.spent else 0))
            differ = self._differ(logits, self.y[rows])
            spent = torch.full_like(rows, row)
            self.cases.add({"x": self.x[rows], "origin": rows, "gain": gain, "row": spent}, differ)
            rows = rows[~differ]
            if last or len(rows) == 0:
                break
            self._step(rows, gradient[~differ])

    def _agreed(self) -> Tensor:
        """Rows of the seeds that every model classifies correctly; they count as covered before the first step."""
        everyone = torch.arange(len(self.x), device=self.x.device)
        readings = (self._read(k, everyone, climb=False) for k in range(len(self.networks)))
        logits, active, _ = zip(*readings, strict=True)
        for i in range(len(logits)):
            if any(torch.equal(logits[i], other) for other in logits[:i]):
                raise ValueError("models must differ to disagree, and two of them give the same logits; leave one out")
        right = torch.stack([answer.argmax(1) == self.y for answer in logits]).all(0).nonzero().flatten()
        if len(right) == 0:
            raise ValueError(
                f"DeepXplore starts from seeds that every model classifies correctly, and none of the {len(self.x)} "
                "is; check the labels, or give other seeds"
            )
        for k, neurons in enumerate(active):
            self._cover(k, right, neurons[right])
        return right

    def _read(self, k: int, rows: Tensor, *, climb: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, which neurons are active, and to climb, the gradient of the k-th model's part of (1), else zeros."""
        network, parts = self.networks[k], []
        for some in rows.split(self.model.batch_size):
            x, objective = self.x[some], self._objective(k, some)
            parts.append(network.climb(x, objective) if climb else (network.read(x), torch.zeros_like(x)))
        active = [reading.scaled > self.options.threshold for reading, _ in parts]
        logits = torch.cat([reading.logits for reading, _ in parts])
        return logits, torch.cat(active), torch.cat([gradient for _, gradient in parts])

    def _evaluate(self, rows: Tensor, *, climb: bool) -> tuple[list[Tensor], Tensor, Tensor]:
        """Every model's logits, the gain in coverage, and the gradient of (1): one model at a time."""
        logits, gain, gradient = [], torch.zeros_like(rows), torch.zeros_like(self.x[rows])
        for k in range(len(self.networks)):
            answer, active, part = self._read(k, rows, climb=climb)
            logits.append(answer)
            gain += self._cover(k, rows, active)
            gradient += part
        self.shares.append([float((first < len(self.x)).double().mean()) for first in self.first])
        return logits, gain, gradient

    def _objective(self, k: int, rows: Tensor) -> Objective:
        """The k-th model's part of (1)."""
        options, goals, c = self.options, self.goals[k, rows][:, None], self.y[rows][:, None]
        sign = torch.where(self.deviating[rows] == k, -self.weight_diff, 1.0)

        def value(reading: NeuronReading) -> Tensor:
            f, n = reading.logits.gather(1, c)[:, 0], reading.values.gather(1, goals)[:, 0]
            return sign * f + options.weight_coverage * n  # (1)

        return value

    def _differ(self, logits: list[Tensor], c: Tensor) -> Tensor:
        """Rows on which the models disagree, by a margin that no rounding can undo."""
        predictions = torch.stack([answer.argmax(1) for answer in logits])
        firm = torch.stack([Goal().reached(answer, c) for answer in logits]).any(0)
        return firm & (predictions != predictions[0]).any(0)

    # Coverage: `first` is the first seed that covered each neuron; seed i's view holds those with first <= i

    def _cover(self, k: int, rows: Tensor, active: Tensor) -> Tensor:
        """Note what these rows cover, and return how many neurons each adds to its seed's view."""
        own = rows[:, None]
        gain = (active & (self.first[k] > own)).sum(1)
        self.first[k] = torch.minimum(self.first[k], torch.where(active, own, len(self.x)).amin(0))
        return gain

    def _draw_goals(self, rows: Tensor) -> None:
        """A new neuron for every row whose last one is covered by now; any neuron if all are covered."""
        u = self._uniform(len(self.networks))
        for k, first in enumerate(self.first):
            old = self.goals[k, rows]
            lost = rows[(old < 0) | (first[old.clamp_min(0)] <= rows)]
            free = first > lost[:, None]
            free |= ~free.any(1, keepdim=True)
            rank = (u[lost, k] * free.sum(1)).long()
            self.goals[k, lost] = (free.cumsum(1) <= rank[:, None]).sum(1)  # the place of the free neuron of that rank

    # Steps

    def _step(self, rows: Tensor, gradient: Tensor) -> None:
        """One step (2) of these rows; random numbers are drawn for all seeds, including finished ones."""
        options, (low, high) = self.options, self.model.bounds
        if options.direction == "random":
            gradient = normal_like(self.x, generator=self.generator)[rows]
        if options.constraint == "blackout":
            self.place = self._uniform(2)
        moved = self.moved[rows] + options.step * self._constrained(rows, gradient)
        self.x[rows] = (self.x0[rows] + moved).clamp(low, high)
        if options.constraint == "light":
            self.moved[rows] = moved.clamp(low - high, high - low)  # beyond this nothing can change
        else:
            self.moved[rows] = self.x[rows] - self.x0[rows]

    def _constrained(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """The direction that the constraint allows, of unit root mean square over the values that may change."""
        if self.options.constraint == "light":
            return column(gradient.flatten(1).mean(1).sign(), gradient).expand_as(gradient)
        inside = self._inside(rows)
        allowed = gradient * inside
        if self.options.constraint == "blackout":
            return -inside * column((allowed.flatten(1).sum(1) < 0).to(gradient), gradient)
        return steepest(allowed, "l2") * (inside[0].sum() * gradient.shape[1]).sqrt()

    def _inside(self, rows: Tensor) -> Tensor:
        """``(rows, 1, height, width)``: 1 within each row's rectangle, else 0."""
        sides = []
        for axis, length in enumerate(self.options.rectangle(self.x)):
            whole = self.x.shape[2 + axis]
            start = (self.place[rows, axis] * (whole - length + 1)).long().clamp_max(whole - length)[:, None]
            at = torch.arange(whole, device=rows.device)
            sides.append((at >= start) & (at < start + length))
        return (sides[0][:, None, :, None] & sides[1][:, None, None, :]).to(self.x)

    def _uniform(self, columns: int) -> Tensor:
        """Uniform numbers in [0, 1), ``(seeds, columns)``."""
        g = self.generator
        return torch.rand(len(self.x), columns, generator=g, device=g.device, dtype=torch.float64).to(self.x.device)


def _check_models(models: tuple[Classifier, ...], seeds: Samples) -> None:
    """Raise for models that cannot be compared on these seeds."""
    model = models[0]
    for i, other in enumerate(models[1:], 1):
        try:
            other.check(seeds)
        except ValueError as error:
            raise ValueError(f"every model must take the seeds, and other{i} does not: {error}") from error
        if (theirs := other.classes(seeds.x)) != (ours := model.classes(seeds.x)):
            raise ValueError(f"models must share their classes, got {ours} and, from other{i}, {theirs}")
        if other.bounds != model.bounds or other.device != model.device:
            raise ValueError(
                f"models must share bounds and device, got {model.bounds} on {model.device} and, from other{i}, "
                f"{other.bounds} on {other.device}"
            )
