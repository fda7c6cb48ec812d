"""A judge of naturalness that learns what the cases of one move look like: cross-fitted and calibrated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from operant.activity import activity
from operant.data import Samples
from operant.formatting import percent_beside
from operant.measure._texture import is_image
from operant.measure.appearance import appearance
from operant.measure.conformal import Conformal, fit_conformal, min_calibration_size
from operant.model import Finding, slack_of
from operant.networks.perceptron import Perceptron, fit_perceptron
from operant.networks.two_sample import TwoSampleNetwork, fit_two_sample, reduced
from operant.networks.vae import check_field, in_chunks
from operant.rng import shuffled
from operant.validation import check_at_least, check_finite, check_row_shape, check_within

LEVEL = 0.05  # p-value from which a draw counts as accepted
MIN_FIELD = 250  # distinct field inputs, below which the judge detects little
MIN_DRAWS = 100  # below which the judge detects little
MIN_ACCEPTED = 0.5  # share of unselected draws that must be accepted; otherwise the recipe or the radius is wrong
GOOD_ACCEPTED = 0.8  # share that a good recipe reaches; below it, a part of the draws is unlike the field
GREY_STEPS = 255  # images are rounded to the grey levels of stored images
NETWORK_STEPS = 100  # of the convolutional network's training
MIN_SPREAD = 1e-6  # of logits
ROWS = 512  # inputs per pass
UNLIKE_FIELD = "draws unlike the field"  # finding that the move, not the judge, is to be doubted
PARTLY_UNLIKE_FIELD = "some draws unlike the field"  # finding about a move that is searched with nevertheless


class Views(NamedTuple):
    """What a judge looks at: small images (None for other inputs), and numbers that describe each input."""

    small: Tensor | None
    numbers: Tensor

    def rows(self, index: Tensor) -> "Views":
        return Views(None if self.small is None else self.small[index], self.numbers[index])


@dataclass(frozen=True, eq=False, kw_only=True)
class FoldJudge:
    """Half of a `Judge`: it learned from one half of the field inputs and is calibrated on the other.

        strangeness(x) = - Σⱼ logitⱼ(x) / spreadⱼ        (1)

    with the logits of a small convolutional network (images only) and of a perceptron on the numbers of `appearance`
    (for other inputs, on their values). Both are larger for inputs that look like the field. The spreads are the
    standard deviations of the logits over draws that it did not learn from, so that both count equally.
    """

    network: dict[str, Tensor] = field(repr=False)  # weights of the convolutional network; empty without one
    perceptron: Perceptron = field(repr=False)
    spreads: tuple[float, ...]
    calibration: Conformal = field(repr=False)  # strangeness of the field inputs that it did not learn from

    def strangeness(self, views: Views) -> Tensor:
        """(1), one value per row."""
        scaled = [logit / spread for logit, spread in zip(self.logits(views), self.spreads, strict=True)]
        return -torch.stack(scaled).sum(0)

    def logits(self, views: Views) -> tuple[Tensor, ...]:
        perceptron = self.perceptron(views.numbers)
        return (perceptron,) if views.small is None else (self._network(views.small), perceptron)

    def __getstate__(self) -> dict[str, object]:
        """What is sent to another process: not the network that is rebuilt when it is first called."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @cached_property
    def _network(self) -> TwoSampleNetwork:
        with torch.device("meta"):  # no initial weights are drawn
            network = TwoSampleNetwork(self.network["layers.0.weight"].shape[1])
        network.load_state_dict(self.network, assign=True)
        return network.eval().requires_grad_(False)


@dataclass(frozen=True, eq=False, kw_only=True)
class Judge:
    """Tells cases of one move from field inputs and gives p-values; made by `fit_judge`.

    Calling it gives a p-value per row. With strangeness aₖ of fold k and its nₖ calibration inputs,

        p(x) = (1 + Σₖ #{i: aₖ(xᵢ) ≥ aₖ(x)}) / (1 + Σₖ nₖ)        (1)

    This is the cross-conformal p-value. The p-value of each fold is valid (see `conformal_p_values`). Their average
    rejects a genuine input at a level with at most twice that probability, whatever the dependence between folds; in
    practice with less than the level itself, because a genuine input seldom looks strange to both networks. Inputs that
    the judge learned from are rated by `of_field`.

    `operant.results.save` and `load` store a judge without loss.

    Args:
        shape: of one input.
        bounds: smallest and largest value of an input, as they scale images.
        rounds: whether images are rounded to 256 grey levels before they are judged, as stored images are.
        folds: two halves, each calibrated on what the other learned from.
        accepted: share of the move's unselected draws with a p-value of at least .05, each judged by the fold that has
            not seen it.
        field_inputs, draws: their numbers; of field inputs the distinct ones.
        findings: reasons to doubt the judge or the move.

    References:
        | Revisiting Classifier Two-Sample Tests (Lopez-Paz and Oquab, 2017), https://arxiv.org/abs/1610.06545
        | Cross-Conformal Predictors (Vovk, 2015), https://arxiv.org/abs/1208.0806
    """

    shape: tuple[int, ...]
    bounds: tuple[float, float]
    rounds: bool
    folds: tuple[FoldJudge, ...]
    accepted: float
    field_inputs: int
    draws: int
    findings: tuple[Finding, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """A p-value in (0, 1] for each row, in float64, without gradients; small means unlike field data."""
        above = (self.p_values(x) * (self._sizes + 1) - 1).round()  # calibration inputs that are at least as strange
        return ((1 + above.sum(1)) / (1 + self._sizes.sum())).to(x.device)  # (1)

    def p_values(self, x: Tensor) -> Tensor:
        """The conformal p-value of each row by each fold, ``(N, 2)``."""
        with torch.no_grad():
            strangeness = self._strangeness(x, rounds=self.rounds)
        return _p_values(self.folds, strangeness)

    def of_field(self, samples: Samples) -> Tensor:
        """P-values of the field inputs that the judge was made from, each by the fold that did not learn from it."""
        p = self.p_values(samples.x)
        for fold, rows in enumerate(_halves(samples)):
            p[rows, 0] = p[rows, fold]
        return p[:, 0]

    def surrogate(self, x: Tensor) -> Tensor:
        """A differentiable surrogate for log p, for searches; images are not rounded. See `Conformal.smooth_log_p`.

        A search that climbs it finds what the judge overlooks, so another judge must decide about its cases: one that
        was fitted to other field inputs.
        """
        columns = self._strangeness(x, rounds=False).unbind(1)
        pairs = [(fold.calibration, a) for fold, a in zip(self.folds, columns, strict=True) if fold.calibration.varies]
        if not pairs:
            return x.flatten(1).sum(1).double() * 0
        logs = [calibration.smooth_log_p(a) for calibration, a in pairs]
        return torch.logsumexp(torch.stack(logs, 1), 1) - math.log(len(logs))

    @property
    def trusted(self) -> bool:
        """Whether the move may be searched with: at least half of its unselected draws are accepted.

        Otherwise its recipe or radius is wrong, and its failures are not those of the field. A trusted move can be
        wrong too, in what a judge hardly sees, such as orientation; a good recipe reaches 80 to 100 %.
        """
        return self.accepted >= MIN_ACCEPTED

    @property
    def calibration_size(self) -> int:
        """Number of calibration inputs behind the p-values, of both folds."""
        return int(self._sizes.sum())

    def __str__(self) -> str:
        verdict = "" if self.trusted else "; its recipe or radius is wrong"
        first = f"{accepted_text(self.accepted)} of {self.draws} unselected draws look like field inputs{verdict}"
        return "\n".join([first, *(str(finding) for finding in self.findings)])

    @property
    def _sizes(self) -> Tensor:
        return torch.tensor([len(fold.calibration) for fold in self.folds], dtype=torch.float64)

    def _strangeness(self, x: Tensor, *, rounds: bool) -> Tensor:
        """By each fold, ``(N, 2)``; differentiable unless it rounds."""
        check_row_shape(self.shape, inputs=x)
        check_finite(inputs=x)

        def run(part: Tensor) -> Tensor:
            views = _views(part, self.bounds, rounds)
            return torch.stack([fold.strangeness(views) for fold in self.folds], 1)

        return in_chunks(run, x, rows=ROWS)


def fit_judge(
    field: Samples,
    draws: Samples,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    generator: torch.Generator,
    progress: bool = True,
) -> Judge:
    """Learn to tell field inputs from unselected draws of one move, and how strange field inputs look to that judge.

    Fixed scores have blind spots, and a search finds them. A judge learns what this move's cases look like: if they
    differ from the field in anything that a small network can see, it finds it.

    Field inputs are divided into halves by their groups or ids, draws at random. For each half, a convolutional network
    and perceptrons on about ninety numbers (`appearance`) learn from the other half; the strangeness of this half's
    field inputs calibrates them. Inputs that are not images of at least 8 x 8 pixels are judged by their values,
    without the convolutional network. Images of more than 64 pixels are reduced.

    Args:
        field: inputs from operation, labels not needed; below 250 distinct ones a finding says that it detects little.
        draws: what the move makes of seeds that are not searched, passes and failures alike; a few hundred. Never give
            failures alone: the judge would learn to reject what is hard instead of what is strange.
        bounds: smallest and largest value of an input.
        generator: draws halves, weights and batches.
        progress: show progress on stderr.
    """
    halves = _checked(field, draws, bounds)
    scale, rounds = _scale(field, draws, bounds)
    order = shuffled(len(draws), generator).tensor_split(2)
    with activity("fitting a judge", 2, unit="folds", show=progress) as work:
        seen, made = (_all_views(s.x, scale, rounds) for s in (field, draws))
        folds = []
        for k in (0, 1):
            learn = seen.rows(halves[1 - k]), made.rows(order[1 - k])
            folds.append(_fit_fold(learn, (seen.rows(halves[k]), made.rows(order[k])), generator))
            work.advance()
    judge = Judge(
        shape=tuple(field.shape),
        bounds=scale,
        rounds=rounds,
        folds=tuple(folds),
        accepted=_accepted(folds, [made.rows(rows) for rows in order]),
        field_inputs=len(field.ids.unique()),
        draws=len(draws),
    )
    return replace(judge, findings=_findings(judge, draws))


def _accepted(folds: Sequence[FoldJudge], draws: Sequence[Views]) -> float:
    """Share of draws with a p-value of at least .05, each by the fold that did not learn from it."""
    with torch.no_grad():
        p = [fold.calibration.p_values(fold.strangeness(some)) for fold, some in zip(folds, draws, strict=True)]
    return float((torch.cat(p) >= LEVEL).double().mean())


def too_few(field: Samples) -> bool:
    """Whether there are fewer than 250 distinct field inputs, or nearly all are in groups of one half."""
    return min(_distinct(field), 3 * min(_distinct(field[rows]) for rows in _halves(field))) < MIN_FIELD


def _fit_fold(learn: tuple[Views, Views], held: tuple[Views, Views], generator: torch.Generator) -> FoldJudge:
    """Learn from field inputs and draws, calibrate on others."""
    network: dict[str, Tensor] = {}
    if learn[0].small is not None and learn[1].small is not None:
        fitted = fit_two_sample(learn[0].small, learn[1].small, steps=NETWORK_STEPS, generator=generator)
        network = {name: w.detach().clone() for name, w in fitted.network.state_dict().items()}
    perceptron = fit_perceptron(learn[0].numbers, learn[1].numbers, generator=generator)
    ones = (1.0,) * (1 + bool(network))
    draft = FoldJudge(network=network, perceptron=perceptron, spreads=ones, calibration=Conformal(torch.zeros(1)))
    with torch.no_grad():
        spreads = tuple(max(float(logit.std()), MIN_SPREAD) for logit in draft.logits(held[1]))
        scaled = replace(draft, spreads=spreads)
        return replace(scaled, calibration=fit_conformal(scaled.strangeness(held[0])))


def _views(x: Tensor, bounds: tuple[float, float], rounds: bool) -> Views:
    if not is_image(tuple(x.shape[1:])):
        return Views(None, x.flatten(1).float().cpu())
    if rounds:
        width = (bounds[1] - bounds[0]) / GREY_STEPS
        x = ((x - bounds[0]) / width).round() * width + bounds[0]
    return Views(reduced(x, bounds), appearance(x, bounds=bounds))


def _all_views(x: Tensor, bounds: tuple[float, float], rounds: bool) -> Views:
    parts = [_views(part, bounds, rounds) for part in x.split(ROWS)]
    small = [part.small for part in parts if part.small is not None]
    return Views(torch.cat(small) if small else None, torch.cat([part.numbers for part in parts]))


def _p_values(folds: Sequence[FoldJudge], strangeness: Tensor) -> Tensor:
    columns = zip(folds, strangeness.unbind(1), strict=True)
    return torch.stack([fold.calibration.p_values(a) for fold, a in columns], 1)


def _halves(samples: Samples) -> tuple[Tensor, Tensor]:
    """The rows of each half; inputs of one group, and copies of one input, are in the same half."""
    numbered = replace(samples, x=torch.arange(len(samples), dtype=torch.float64)[:, None])
    first, second = numbered.split(judge_first=0.5, judge_second=0.5).values()
    return first.x[:, 0].long(), second.x[:, 0].long()


def _distinct(samples: Samples) -> int:
    return len(samples.ids.unique())


def _scale(field: Samples, draws: Samples, bounds: tuple[float, float]) -> tuple[tuple[float, float], bool]:
    """What images are scaled by, and whether they are rounded; without bounds, by the range of the data."""
    if math.isfinite(bounds[1] - bounds[0]):
        return (float(bounds[0]), float(bounds[1])), is_image(tuple(field.shape))
    ends = [torch.aminmax(s.x) for s in (field, draws)]
    return (min(float(e.min) for e in ends), max(float(e.max) for e in ends)), False


def _checked(field: Samples, draws: Samples, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The halves of the field inputs; raises if there is too little to learn from."""
    needed = min_calibration_size(LEVEL)
    check_field(field, bounds, at_least=2 * needed)
    check_at_least(4, draws=len(draws), advice="give a few hundred unselected draws of the move")
    check_row_shape(tuple(field.shape), draws=draws.x, advice="like the field inputs")
    check_finite(draws=draws.x)
    check_within(bounds, slack=slack_of(bounds), advice="they must have the bounds of the field", draws=draws.x)
    halves = _halves(field)
    if any(_distinct(field[rows]) < needed for rows in halves):
        raise ValueError(
            f"a judge needs {needed} distinct field inputs in each half, got {_distinct(field[halves[0]])} and "
            f"{_distinct(field[halves[1]])}; give more inputs, or smaller groups"
        )
    return halves


def _findings(judge: Judge, draws: Samples) -> tuple[Finding, ...]:
    found, n = [], _distinct(draws)
    if judge.field_inputs < MIN_FIELD:
        problem = f"the judge learned from {judge.field_inputs} distinct field inputs, so it overlooks more cases"
        found.append(_finding("few field inputs", problem, f"Give at least {MIN_FIELD}; 1000 are better"))
    if n < MIN_DRAWS:
        problem = f"the judge learned from {n} distinct draws, so it overlooks more cases"
        found.append(_finding("few draws", problem, f"Give at least {MIN_DRAWS} draws of the move; 600 are better"))
    if not all(fold.calibration.varies for fold in judge.folds):
        problem = "the judge rates all field inputs equally, so it rejects too little"
        found.append(_finding("judge is blind", problem, "Check that inputs and draws are what they should be"))
    return (*found, *_findings_about_draws(judge))


def _findings_about_draws(judge: Judge) -> tuple[Finding, ...]:
    if not judge.trusted:
        problem = f"only {accepted_text(judge.accepted)} of the move's unselected draws look like field inputs"
        advice = "The recipe or the radius is wrong: fit it again or make it smaller before you search with it"
        return (_finding(UNLIKE_FIELD, problem, advice),)
    if judge.accepted < GOOD_ACCEPTED:
        problem = "part of the draws do not look like field inputs, and a good recipe reaches 80 to 100 %"
        advice = (
            "Compare draws with field inputs, their orientation above all, which a judge hardly sees. Fit the recipe "
            "again, declare a better one, or make the radius smaller"
        )
        return (_finding(PARTLY_UNLIKE_FIELD, problem, advice),)
    return ()


def accepted_text(share: float, digits: int = 3) -> str:
    """A share of accepted draws, with enough digits to see whether it is at least half, and at least four fifths."""
    return percent_beside(share, MIN_ACCEPTED, GOOD_ACCEPTED, digits=digits)


def _finding(name: str, problem: str, advice: str) -> Finding:
    return Finding(name=name, problem=problem, advice=advice)
