"""The risk map: how likely each field input is to fail, learned from operational cases, without field labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from operant.activity import activity
from operant.data import Samples
from operant.formatting import percent
from operant.model import Classifier, Finding
from operant.model.hashing import content_hash
from operant.profile._risk_findings import (
    few_cases,
    lacking_classes,
    missing_layer,
    no_second_head,
    one_outcome,
    only_wider,
)
from operant.profile._risk_terms import (
    Correction,
    Head,
    Known,
    Outputs,
    disagreeing_share,
    failing_share,
    fit_correction,
    folds_of,
    head_fitter,
    margin_log_odds,
)
from operant.profile.priors import Priors
from operant.profile.risk_cases import RiskCases, gather
from operant.suite import Suite
from operant.validation import check_at_least, check_finite, check_not_empty, check_row_shape

# Chosen with seeds that no reported run uses; see `fit_risk`.
NEIGHBOURS = 25
FOLDS = 5
PENALTY = 1.0  # scikit-learn's C of the combination
PLATT_PENALTY = 1e4
RISKIEST = 0.05
ROWS = 8192  # inputs that are rated together
PROBES = 32  # cases whose logits tell models apart that have equal weights, or none
PROBE_SLACK = 1e-4  # by which these logits may differ between devices, if the weights are equal
EDGE = 1e-4  # no probability is nearer to 0 or to 1


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskMap:
    """The probability that a model fails on each input; made by `fit_risk`. It is a `operant.types.Score`.

    ``risk(model, x, y)`` rates inputs; y is not used. If the model is not the one that the map was fitted for, the map
    is fitted again to its cases with that model, so that it stays up to date; `for_model` does so explicitly.

    Attributes:
        failing: weighted share of the cases that fail.
        coefficients: of the terms and of a constant; empty if only the margin is used.
        lift: how much oftener than all cases the riskiest 5 % of them fail, out of fold; NaN if only the margin is
            used.
        findings: what the map had to do without, and what that means.
    """

    cases: RiskCases
    k: int
    failing: float
    lift: float
    findings: tuple[Finding, ...]
    features: Tensor = field(repr=False)  # of the cases, (N, d)
    logits: Tensor = field(repr=False)  # of the cases, (N, classes)
    model: str = field(repr=False)  # hash of the model's content; empty if it has no weights
    probed: Tensor = field(repr=False)  # logits of the first cases, computed alone
    correction: Correction = field(repr=False)
    head: Head = field(repr=False)
    coefficients: Tensor = field(repr=False)
    centre: Tensor = field(repr=False)  # of the terms
    scale: Tensor = field(repr=False)
    calibration: tuple[float, float] = (1.0, 0.0)  # slope and offset of the log odds, fitted out of fold
    _refitted: dict[str, RiskMap] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, model: Classifier, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The probability of failing of each input, ``(N,)`` in float64, between 0 and 1."""
        model.check_inputs(x)
        here = self.for_model(model)
        return torch.cat([here._rated(_outputs(model, part)[0]) for part in x.split(ROWS)]).to(x.device)

    def for_model(self, model: Classifier) -> RiskMap:
        """This map if it was fitted for this model, else one that is fitted to the same cases with that model."""
        if self._is_for(model):
            return self
        if (last := self._refitted.get("last")) is None or not last._is_for(model):
            last = self._refitted["last"] = _fitted(model, self.cases, self.k)
        return last

    @property
    def learned(self) -> bool:
        """Whether the cases taught more than the margin; if not, a finding says why."""
        return self.coefficients.numel() > 0

    def __str__(self) -> str:
        n, wider, taught = self.cases.own, self.cases.wider, self.cases.taught
        more = [f"{wider} of wider conditions"] if wider else []
        more += [f"{taught} labelled field inputs"] if taught else []
        first = f"Risk map from {' and '.join([f'{n} cases', *more])}: {percent(self.failing)} of the cases fail."
        if self.learned:
            first += f" The riskiest 5 % of them fail {self.lift:.1f} times as often as all, out of fold."
        return "\n".join([first, *(str(finding) for finding in self.findings)])

    def _is_for(self, model: Classifier) -> bool:
        """Whether the model has the same weights and logits; without weights, exactly the same logits."""
        if self.model != content_hash(model):
            return False
        logits = _probed(model, self.cases)
        slack = PROBE_SLACK * (1 + float(self.probed.abs().amax())) if self.model else 0.0
        return logits.shape == self.probed.shape and torch.allclose(logits, self.probed, rtol=0, atol=slack)

    def _rated(self, asked: Outputs) -> Tensor:
        if not self.learned:
            return margin_log_odds(asked).sigmoid().clamp(EDGE, 1 - EDGE)
        known = _known(self.cases, Outputs(logits=self.logits.double(), features=self.features.double()))
        terms = _terms(known, asked, self.head.log_odds(asked), self.correction.log_odds(asked), k=self.k)
        slope, offset = self.calibration
        log_odds = _design((terms - self.centre) / self.scale) @ self.coefficients
        return (slope * log_odds + offset).sigmoid().clamp(EDGE, 1 - EDGE)


@activity("fitting the risk map")
def fit_risk(
    model: Classifier,
    cases: Suite,
    *,
    wider: Suite | None = None,
    priors: Priors | Sequence[float] | None = None,
    taught: Samples | None = None,
    seeds: Samples | None = None,
    k: int = NEIGHBOURS,
) -> RiskMap:
    """Learn from cases that pass and cases that fail how likely any input is to fail; no field label is needed.

        P(fail | x) = σ(a (β · terms(x) + β_0) + b)        (1)

    Terms, all log odds of failing: the share of failing cases among the k nearest in the model's penultimate features
    with the same prediction; the share of the k nearest of all cases with another label than is predicted; a second
    last layer, trained on the cases; the model's confidence, corrected by a temperature and one bias per class that are
    fitted to the cases; the model's margin. For cases the first four leave out all cases of the same seed or fold. β
    is a logistic regression, a and b (Platt) are fitted out of fold.

    Estimated priors can be wrong for a class, and one that is much too small would make every prediction of that class
    look like a failure. So in all but a and b a class has the weight of an even share 1 / C or more, unless its prior
    is far below that, where an estimate is rarely wrong by as much:

        weight = max(prior, min(1, (prior C / 0.4)²) / C)        (2)

    The cases must be unselected draws of the field's conditions, such as those of `operant.generate.RecipeDraws`, and
    must hold the cases that pass: failures alone do not say where inputs are safe. At least 3000 are advised. Draw them
    from inputs that the model has not learned from, as far as there are labelled ones: it fails less often on others.

    The definition was chosen by the lift of the riskiest 5 % of unseen field inputs, on MNIST by Zipf's law under
    conditions, USPS and Tiny ImageNet's images, with seeds that no reported run uses, and then frozen. Neighbours
    alone, boosted trees and an offset per class ranked no better than this sum. The mean confidence in five copies of
    an input, shifted by a pixel, added a little: too little for five passes of the model.

    Args:
        model: the model that will be rated.
        cases: with their true labels, which come from their seeds. Predictions are computed again.
        wider: cases of wider conditions, such as draws of `operant.conditions.wider`, half to equally many. They
            teach the ranking what the recipe leaves unexplained, and what fails where the recipe's cases hardly ever
            do. The probabilities are not fitted to them.
        priors: of the classes in the field; cases are weighted by them. None: the cases already have the field's
            class shares.
        taught: labelled field inputs, if there are any. Each counts as much as five cases.
        seeds: the inputs that cases were drawn from, if they have groups: cases of one group depend on each other, so
            they are no neighbours of each other and stay in one fold. None: cases of different seeds are independent.
        k: neighbours.

    References:
        | Probabilistic Outputs for Support Vector Machines (Platt, 1999)
        | To Trust Or Not To Trust A Classifier (Jiang et al., 2018), https://arxiv.org/abs/1805.11783, which finds
        | neighbours in training data
    """
    check_at_least(1, k=k)
    _check_suites(cases=cases, wider=wider)
    check_not_empty(cases=cases, advice="draw cases with operant.generate.RecipeDraws")
    model.check(Samples(cases.x, cases.label, classes=cases.classes))
    if wider is not None and len(wider):
        check_row_shape(tuple(cases.x.shape[1:]), wider=wider.x, advice="draw them from the seeds of the other cases")
        model.check(Samples(wider.x, wider.label, classes=wider.classes))
    return _fitted(model, gather(model, cases, wider=wider, priors=priors, taught=taught, seeds=seeds), k)


def _check_suites(**given: object) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, Suite):
            raise TypeError(
                f"{name} must be a Suite of cases, got {type(value).__name__}; draw cases from labelled inputs: "
                "operant.generate.RecipeDraws(recipe=...)(model, samples, generator=...)"
            )


# Fitting --------------------------------------------------------------------------------------------------------------


def _fitted(model: Classifier, cases: RiskCases, k: int) -> RiskMap:
    outputs, tapped = _outputs(model, cases.x)
    check_finite(logits=outputs.logits, features=outputs.features, advice="examine the model with model.doctor")
    known = _known(cases, outputs)
    to_head, no_head = head_fitter(known)
    mass, doubts = _calibrating(known, cases)
    findings = (*missing_layer(tapped), *few_cases(cases.own), *lacking_classes(known, cases.classes, k), *doubts)
    findings = (*findings, *(no_second_head() if no_head else ()))
    empty = torch.empty(0, dtype=torch.float64)
    learned: dict[str, Any] = {"coefficients": empty, "centre": empty, "scale": empty, "lift": float("nan")}
    if problem := one_outcome(known, mass):
        findings = (*findings, problem)
    else:
        learned = _combined(known, mass, to_head, k)
    w, failed = cases.mass[: cases.own], known.failed[: cases.own]
    return RiskMap(
        cases=cases,
        k=k,
        failing=float((w * failed).sum() / w.sum()),
        findings=findings,
        features=outputs.features.float(),
        logits=outputs.logits.float(),
        model=content_hash(model),
        probed=_probed(model, cases),
        correction=fit_correction(known),
        head=to_head(known),
        **learned,
    )


def _calibrating(known: Known, cases: RiskCases) -> tuple[Tensor, tuple[Finding, ...]]:
    """What probabilities are fitted to: cases of the recipe or, if nearly all of them pass or fail, wider ones too."""
    mass, wider = cases.mass.clone(), slice(cases.own, cases.own + cases.wider)
    mass[wider] = known.weight[wider]
    if not cases.wider or one_outcome(known, cases.mass) is None or one_outcome(known, mass) is not None:
        return cases.mass, ()
    return mass, (only_wider(),)


def _combined(known: Known, mass: Tensor, to_head: Callable[[Known], Head], k: int) -> dict[str, Any]:
    """The coefficients of (1), their calibration out of fold, and the lift that they reach there."""
    folds = folds_of(known, FOLDS)
    second, corrected, log_odds = torch.empty(3, len(known), dtype=torch.float64)
    for fold in range(FOLDS):
        here, rest = folds == fold, known[folds != fold]
        second[here] = to_head(rest).log_odds(known.outputs[here])
        corrected[here] = fit_correction(rest).log_odds(known.outputs[here])
    terms = _terms(known, known.outputs, second, corrected, k=k, group=known.group)
    scale, centre = torch.std_mean(terms, 0)
    scale = torch.where(scale > 0, scale, 1.0)
    design = _design((terms - centre) / scale)
    for fold in range(FOLDS):
        here = folds == fold
        log_odds[here] = design[here] @ _regression(design[~here], known.failed[~here], known.weight[~here])
    platt = _regression(_design(log_odds[:, None]), known.failed, mass, penalty=PLATT_PENALTY)
    slope, offset = platt.tolist()
    return {
        "coefficients": _regression(design, known.failed, known.weight),
        "centre": centre,
        "scale": scale,
        "calibration": (max(slope, 0.0), offset),
        "lift": _lift(log_odds, known.failed, mass),
    }


def _terms(
    known: Known, asked: Outputs, second: Tensor, corrected: Tensor, *, k: int, group: Tensor | None = None
) -> Tensor:
    """The terms of (1), ``(N, 5)``, in the order of `TERMS`; cases of an input's own group are no neighbours."""
    shares = [find(known, asked, k=k, group=group).logit(EDGE) for find in (failing_share, disagreeing_share)]
    return torch.stack([*shares, second, corrected, margin_log_odds(asked)], 1)


def _design(terms: Tensor) -> Tensor:
    """Terms and a constant."""
    return torch.cat([terms, torch.ones(len(terms), 1, dtype=torch.float64)], 1)


def _regression(design: Tensor, failed: Tensor, weight: Tensor, *, penalty: float = PENALTY) -> Tensor:
    """Coefficients of a logistic regression of failing on the design."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=penalty, max_iter=1000, fit_intercept=False)
    fitted.fit(design.numpy(), failed.numpy(), sample_weight=(weight / weight.mean()).numpy())
    return torch.tensor(fitted.coef_[0])


def _lift(log_odds: Tensor, failed: Tensor, mass: Tensor) -> float:
    """Failure rate of the riskiest 5 % of the mass, divided by that of all."""
    order = log_odds.argsort(descending=True)
    w, failed = mass[order], failed[order]
    top = w.cumsum(0) - w < RISKIEST * w.sum()  # never empty
    rate = float((w * failed).sum() / w.sum())
    return float((w * failed)[top].sum() / w[top].sum().clamp_min(1e-300)) / rate


def _known(cases: RiskCases, outputs: Outputs) -> Known:
    return Known(outputs=outputs, label=cases.label, group=cases.group, weight=cases.weight)


def _probed(model: Classifier, cases: RiskCases) -> Tensor:
    return model.batched_logits(cases.x[:PROBES]).cpu().double()


def _outputs(model: Classifier, x: Tensor) -> tuple[Outputs, bool]:
    """Logits and features of inputs, and whether the features are those of the penultimate layer."""
    logits, features = model.batched_logits(x).cpu(), model.penultimate(x)
    kept = logits if features is None else features.cpu()
    return Outputs(logits=logits.float().double(), features=kept.float().double()), features is not None
