"""The tables of the study of seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from operant_studies.seeds.outcome import ArmResult, MapResult, SeedsOutcome, ratio_of_rmse
from operant_studies.seeds.risk import wider_of
from operant_studies.seeds.settings import RISK_MAP, SETUPS
from operant_studies.seeds.trials import BY_MAP, DEFAULT, DESIGNS, ONCE, OPERATIONAL, SIMPLE, DrawArm, deepest, top
from operant_studies.seeds.weighting import CHOSEN, PoolWeightings
from operant_studies.shared import Mean, mean, table, verdict


def possible(outcomes: Sequence[SeedsOutcome]) -> str:
    rows = []
    for o in outcomes:
        f, (riskiest, failing) = o.facts, ceiling(o)
        cells = [percent(f.error), percent(f.pmi), f"{f.effective:.0f}", percent(f.largest, 3)]
        cells += [percent(f.simple_found, 3), f"{percent(f.simple_rmse)}, {percent(f.operational_rmse)}"]
        cells += [f"{f.operational_found / f.simple_found:.1f}", f"{cap(o):.1f}"]
        cells.append(f"{riskiest.gain.value:.1f} ({riskiest.arm.score}, {failing:.0%} fail)")
        rows.append([o.label, f.size, *cells])
    columns = ["set-up", "N", "inputs that fail, %", "pmi, %", "effective inputs", "largest mass, %"]
    columns += ["simple sampling finds, %", "RMSE simple, operational, points", "operational finds / simple"]
    columns += ["at most / simple", "the riskiest / simple"]
    n = outcomes[0].setting.draws
    text = f"""## What is possible

Computed for the whole pool, without drawing. *pmi* is the mass of the pool's failing inputs. *Simple sampling finds*
the failing mass n / N · pmi in expectation; the last three columns are multiples of it, at most N / n. *At most*: the
{n} failing inputs of largest mass, which are unknown beforehand; with equal masses that is 1 / pmi, if {n} inputs fail.
*The riskiest*: the {n} inputs of largest mass times risk, by the best score; a design that also draws elsewhere will
hardly find more. Where *effective inputs* are fewer than draws, a few inputs have most of the mass; drawing each of
them once is nearly a census, and any design that does so is far ahead.

"""
    return text + table(columns, rows)


def cap(o: SeedsOutcome) -> float:
    return o.facts.heaviest / o.facts.simple_found


def ceiling(o: SeedsOutcome) -> tuple[ArmResult, float]:
    """The best top list of any score, and the share of it that fails."""
    best = max((o.tried[top(score)] for score in o.setting.scores), key=lambda t: t.gain.value)
    return best, float(best.failures.mean()) / o.setting.draws


def designs(outcomes: Sequence[SeedsOutcome]) -> str:
    s = outcomes[0].setting
    text = f"""## Designs

{s.draws} draws, {s.repetitions} repetitions each. *Failing mass*: Σ p over the distinct failing inputs drawn, percent
of the pool's mass, with 95 % t-intervals over repetitions; */ simple* and */ operational* divide it by the
expectation of those designs (by formula, not by simulation). *RMSE* of the estimate of pmi against the pool's own, in
percentage points and in multiples of simple sampling's exact RMSE, with 95 % bootstrap intervals over repetitions. The
default and the same by the risk map are in bold. The last row is the best of {len(outcomes[0].grid)}: the design that
found most among those whose RMSE is below simple sampling's with its whole interval, judged in {s.repetitions} fresh
repetitions.
"""
    for o in outcomes:
        rows = [_row(o, o.tried[arm]) for arm in _shown(o)]
        rows.append(_row(o, o.best, name=f"best of {len(o.grid)}: {o.best.arm}"))
        columns = ["drawn by", "failing mass, %", "/ simple", "/ operational", "failing inputs", "RMSE, points"]
        columns += ["RMSE / simple", "RMSE / operational"]
        text += f"\n### {o.label}\n\n" + table(columns, rows)
    return text


def _shown(o: SeedsOutcome) -> list[DrawArm]:
    """The default, the same by the risk map, and arms that differ from one of them in one thing."""
    s = o.setting
    arms = [SIMPLE, OPERATIONAL, ONCE, DEFAULT, BY_MAP]
    arms += [replace(DEFAULT, score=score) for score in s.scores]
    arms += [replace(DEFAULT, design=design) for design in DESIGNS]
    arms += [replace(DEFAULT, power=power, defensive=share) for share in s.defensives for power in s.powers]
    arms += [replace(DEFAULT, profile=False), replace(DEFAULT, design="stratified", profile=False)]
    arms += [replace(BY_MAP, power=power, defensive=share) for share in s.defensives for power in s.powers]
    arms += [replace(BY_MAP, profile=False)]
    arms += [arm for score in ("margin", RISK_MAP) for arm in (deepest(score), top(score), top(score, profile=False))]
    return [arm for arm in dict.fromkeys(arms) if arm in o.tried]


def _row(o: SeedsOutcome, t: ArmResult, *, name: str = "") -> list[object]:
    f = o.facts
    name = name or (f"**{t.arm}**" if t.arm in (DEFAULT, BY_MAP) else _described(t.arm, weighted=o.unit.weighted))
    cells: list[object] = [name, interval(t.mass, 100, 2), interval(t.gain, 1, 1)]
    cells += [f"{t.mass.value / f.operational_found:.1f}", f"{float(t.failures.mean()):.1f}"]
    if not t.estimates:
        return [*cells, "no estimate", "", ""]
    return [*cells, percent(t.rmse.value), interval(t.loss, 1, 2), f"{t.rmse.value / f.operational_rmse:.2f}"]


def _described(arm: DrawArm, *, weighted: bool) -> str:
    if arm == deepest(arm.score):
        return f"DeepEST-like: sequential, {arm.score} alone"
    if arm.design == "top":
        what = f"mass times {arm.score}" if arm.profile and weighted else arm.score
        return f"top {what} (baseline)"
    return str(arm)


def weightings(outcomes: Sequence[SeedsOutcome]) -> str:
    text = f"""## How well a weighting stands for the field

Where the pool is not a sample from the field, its inputs are weighted. *pmi* is the mass of failing pool inputs, to be
compared with the failing share of fresh field inputs; *classes* the total variation distance between class masses and
class frequencies in the field; *effective* the effective number of inputs. Means over
{len(outcomes[0].setting.seeds)} seeds, with minimum and maximum in brackets; the seed decides the field inputs for the
profile and, for Zipf and conditions, pool and fresh inputs, too. *density*: normalised
density at each pool input, as in HDA and others; *ratio*: domain classifier (`fit_ratio`); *profile*:
`Profile.weights`. Draws on this page use **{CHOSEN}**.

![pmi by weighting](seeds-weightings.svg)
"""
    for o in outcomes:
        if not o.weighed:
            continue
        truth = mean(w.truth for w in o.weighed).value
        truth_text = f"Failing share of {o.weighed[0].fresh} fresh field inputs: {percent(truth)} %."
        rows = [_weighting(o.weighed, way.name) for way in o.weighed[0].ways]
        columns = ["weighting", "pmi, %", "pmi / true", "classes", "effective"]
        text += f"\n### {o.label}\n\n{truth_text}\n\n" + table(columns, rows)
    return text


def _weighting(weighed: Sequence[PoolWeightings], name: str) -> list[str]:
    ways = [w.way(name) for w in weighed]
    ratios = [way.pmi / w.truth for way, w in zip(ways, weighed, strict=True)]
    cells = [spread([100 * way.pmi for way in ways], 2), spread(ratios, 2)]
    cells += [spread([way.distance for way in ways], 3), spread([way.effective for way in ways], 0)]
    return [f"**{name}**" if name == CHOSEN else name, *cells]


def risk_maps(outcomes: Sequence[SeedsOutcome]) -> str:
    """What the risk maps knew, expected and found."""
    columns = ["set-up", "seed", "estimated conditions", "unexplained", "classes", "cases that fail, %"]
    columns += ["pmi by the map, %", "pmi, %", "finds / simple", "less the margin's"]
    cases = outcomes[0].setting.cases
    text = f"""## What the risk map knows

The risk map needs no label of the field. From unlabelled field inputs come the conditions, with the *unexplained* share
of the difference from training images, and the class shares; *classes* is their total variation distance from the true
ones. {cases} training images under these conditions, half by the estimated class shares and half evenly, teach the map,
and so do {wider_of(cases)} others under wider conditions, which teach the ranking but not the probabilities.
*Cases that fail* are of the estimated conditions alone, weighted by the class shares. *pmi by the map* is the mean of
its values over the pool, weighted by mass, beside the pool's true pmi. Draws need values in the right proportions, not
of the right size.

All other sections use the map of the first seed. Maps of other seeds come from other field inputs (in the USPS field
pool the same ones), other training images and other cases; *finds / simple* is what the default by the risk map finds
with each, on the same pool, and *less the margin's* the difference from the default. These maps decide no verdict.

"""
    return text + table(columns, [_map_row(o, one) for o in outcomes for one in o.maps])


def _map_row(o: SeedsOutcome, one: MapResult) -> list[object]:
    fitted, rated = one.conditions, one.rated
    more = mean(((one.arm.found - o.tried[DEFAULT].found) / o.facts.simple_found).tolist())
    cells = [", ".join(fitted.active) or "none", f"{fitted.unexplained:.2f}", f"{rated.distance:.3f}"]
    cells += [percent(rated.failing), percent(one.expected), percent(o.facts.pmi), interval(one.arm.gain, 1, 1)]
    return [o.label, one.seed, *cells, signed(more)]


def rankings(outcomes: Sequence[SeedsOutcome]) -> str:
    n = outcomes[0].setting.draws
    rows = [
        [o.label, ranking.score, f"{ranking.correlation:.2f}", f"{ranking.shared:.0%}"]
        for o in outcomes
        if o.unit.weighted
        for ranking in o.facts.rankings
    ]
    text = f"""## Rankings with and without the profile

Weights of `combine(mass, risk)` against those of `combine(equal mass, risk)`: Spearman's rank correlation over the
pool, and the share of the {n} largest that both have. In field pools all masses are equal, and so are the rankings.

"""
    return text + table(["set-up", "score", "rank correlation", f"shared among the {n} largest"], rows)


def default(outcomes: Sequence[SeedsOutcome]) -> str:
    """The default against arms that differ from it in one thing."""
    s = outcomes[0].setting
    others = [replace(DEFAULT, design=design) for design in DESIGNS if design != DEFAULT.design]
    others += [replace(DEFAULT, score=score) for score in s.scores if score != DEFAULT.score]
    pairs = [(power, share) for share in s.defensives for power in s.powers]
    others += [replace(DEFAULT, power=b, defensive=e) for b, e in pairs if (b, e) != (DEFAULT.power, DEFAULT.defensive)]
    rows = [_against(outcomes, other) for other in others]
    columns = ["instead of the default", "failing mass / default's", "finds more, less, undecided"]
    columns += ["RMSE / default's", "RMSE smaller, larger, undecided"]
    text = f"""## Which default

The default is {DEFAULT}. Each row changes one thing. Ratios are geometric means over the
{len(outcomes)} set-ups and networks; counts are set-ups and networks in which the 95 % interval of the difference (of
the ratio of RMSEs) excludes equality.

"""
    return text + table(columns, rows) + "\n" + _places(outcomes)


def _against(outcomes: Sequence[SeedsOutcome], other: DrawArm) -> list[str]:
    pairs = [(o.tried[other], o.tried[DEFAULT]) for o in outcomes]
    found = [verdict(mean((a.found - b.found).tolist())) for a, b in pairs]
    errors = [_side(ratio_of_rmse(a, b)) for a, b in pairs]
    gain = _geometric([a.gain.value / b.gain.value for a, b in pairs])
    loss = _geometric([a.rmse.value / b.rmse.value for a, b in pairs])
    more = ", ".join(str(found.count(word)) for word in ("held", "not held", "not decided"))
    less = ", ".join(str(errors.count(word)) for word in ("below", "above", "undecided"))
    return [str(other), f"{gain:.2f}", more, f"{loss:.2f}", less]


def _side(ratio: Mean) -> str:
    return "below" if ratio.upper < 1 else "above" if ratio.lower > 1 else "undecided"


def _places(outcomes: Sequence[SeedsOutcome]) -> str:
    """The arms that find most over all set-ups, among those that nowhere estimate worse than simple sampling."""
    arms = [t.arm for t in outcomes[0].grid]
    gains = {arm: _geometric([o.tried[arm].gain.value for o in outcomes]) for arm in arms}
    losses = {arm: max(o.tried[arm].loss.value for o in outcomes) for arm in arms}
    order = sorted((arm for arm in arms if losses[arm] <= 1), key=lambda arm: -gains[arm])
    worst = {arm: max(_over_operational(o, arm) for o in outcomes) for arm in arms}
    shown = list(dict.fromkeys([*order[:8], *(arm for arm in (DEFAULT, BY_MAP) if arm in order)]))
    rows = [
        [order.index(arm) + 1, f"{gains[arm]:.1f}", f"{losses[arm]:.2f}", f"{worst[arm]:.2f}", str(arm)]
        for arm in shown
    ]
    columns = ["place", "finds / simple, geometric mean", "largest RMSE / simple", "largest RMSE / operational"]
    columns.append("drawn by")
    return (
        f"Of {len(arms)} with the profile, {len(order)} have an RMSE no larger than simple sampling's in all of them "
        f"(by value, not by interval). Those that find most:\n\n{table(columns, rows)}"
    )


def _over_operational(o: SeedsOutcome, arm: DrawArm) -> float:
    return o.tried[arm].rmse.value / o.facts.operational_rmse


def method(outcomes: Sequence[SeedsOutcome]) -> str:
    s = outcomes[0].setting
    stand_in = "\n- The same digits, shifted and paler, replace USPS." if s.dataset == "digits" else ""
    names = "\n".join(f"- **{SETUPS[name]}**: {text}" for name, text in METHOD.items())
    return f"""## What was run

{names.format(pool=s.pool, field=s.field)}
- Networks: LeNets for {s.dataset}, {" and ".join(s.networks)}; *robust* was trained adversarially (L∞, .3).{stand_in}
- Scores: {", ".join(s.scores)} (gradient: L2 norm, for the predicted class; DSA: {s.references} training inputs, layer
  {s.layer}). Weights: (1 - ε) p r^b / Σ + ε p, p the mass, r the score; without the profile, p is equal in the weights,
  while estimates still use the mass. Grid: {len(DESIGNS)} designs, {len(s.scores)} scores, b of
  {", ".join(f"{b:g}" for b in s.powers)}, ε of {", ".join(f"{e:g}" for e in s.defensives)}.
- Risk map: `fit_conditions` and `estimate_priors` by default settings on unlabelled field inputs, then {s.cases}
  `RecipeDraws` of these conditions and {wider_of(s.cases)} of `operant.conditions.wider`, from other training images,
  then `fit_risk`. The field inputs are those of the profile; for the Zipf field pool {s.field} other
  field inputs, made of training images; for the USPS field pool the pool itself, without its labels, because there is
  no other USPS. The {s.clean} training images for the conditions, the {s.labelled} labelled inputs for the class
  shares, the seeds of cases and the images of a made field are disjoint. The labelled inputs are test images for the
  USPS field pool; the other pools are made of test images, so there they are training images, on which the networks err
  less than on new inputs. The definition of the map was chosen with other networks and other seeds, on MNIST by Zipf's
  law under conditions, USPS and Tiny ImageNet; so its kinds of field, and the images of USPS, are not new to it.
- Estimates: Hansen-Hurwitz (pps), Horvitz-Thompson (poisson), Rao-Hartley-Cochran (rhc), LURE (sequential), by stratum
  (stratified, four strata). Simple random sampling: equal chances without replacement. DeepEST-like: ε = 0, equal mass,
  estimated by LURE; it never draws inputs of risk 0.
- Masses: `fit_profile`, {s.dimensions} principal components of features of layer {s.layer}; field labels are not
  used. Estimated priors: `estimate_priors` without conditions, from the pool and the field inputs' outputs.
- The intervals are over draws; they do not include the variation of pool, field, networks and risk maps.
"""


METHOD = {
    "usps-field": "all of USPS (16 to 20 pixels, bilinear, in a frame of 28), every input the same mass.",
    "usps-pool": "the first {pool} test images, weighted by a profile of {field} of USPS's training images; all of "
    "USPS is the truth.",
    "zipf-field": "{pool} test images drawn with class priors 1 / (c + 1), rotation N(0, 12°), blur U(0, 1.3), "
    "brightness N(0, .15); every input the same mass.",
    "zipf-pool": "the first {pool} test images under rotation U(-40°, 40°), blur U(0, 2), brightness U(-.4, .4), "
    "weighted by a profile of {field} field inputs made from training images; fresh field inputs, from test images, "
    "are the truth.",
}


# Cells


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}"


def interval(value: Mean, factor: float, digits: int) -> str:
    numbers = (factor * value.value, factor * max(value.lower, 0.0), factor * value.upper)
    centre, low, high = (f"{number:.{digits}f}" for number in numbers)
    return f"{centre} [{low}, {high}]"


def signed(value: Mean) -> str:
    """A difference with its interval."""
    return f"{value.value:.1f} [{value.lower:.1f}, {value.upper:.1f}]"


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, with minimum and maximum."""
    centre, low, high = (f"{v:.{digits}f}" for v in (sum(values) / len(values), min(values), max(values)))
    return f"{centre} [{low}, {high}]"


def _geometric(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))
