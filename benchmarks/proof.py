"""Labels that a proof needs: to show a pmi of at most 10 %, at 97.5 %, the level of the first model of a campaign.

The proof is compared with Clopper-Pearson's bound at a fixed number of labels that succeeds in 80 % of runs, and with
the plain confidence sequence in batches of 25. Fields are simulated; the model's risks rank failures with an AUC of
.95, .72 or .5. A proof is guided by risks with an AUC of .8 or more; "guided" shows what it would need otherwise.

    proof_...            labels of the proof over those of the sequence; below 1 is fewer
    none_vs_fixed...     without a failure, labels over the smallest fixed sample
    campaign_...         three models at 2, 1 and .5 times the requirement: labels of guided proofs that share them,
                         over those of plain sequences with fresh labels for each model and the same pauses

Cells with an aim are printed with it; the benchmark stops with an error if one is missed by more than chance explains.

    python benchmarks/proof.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.stats import binom, norm

from operant.assess import Proof, ProofOptions, ScoredModel, begin_proof, block_pool, scored_model
from operant.assess.proof_state import ErrorBudget
from operant.assess.sequential import MIN_AUC
from operant_studies.simulated_proofs import labels_until_met, regimes

REQUIREMENT = 0.1
ALPHA = ErrorBudget(alpha=0.05).share(1)
AUCS = {"AUC .95": 0.95, "AUC .72": 0.72, "blind": 0.5}
SHARES = (0.0, 0.5, 0.75)  # of the requirement that the model fails
AIMS = {
    "proof_95_half": 0.65,
    "proof_95_three_quarters": 0.6,
    "proof_72_half": 1.0,
    "proof_72_three_quarters": 1.0,
    "proof_blind_half": 1.2,
    "proof_blind_three_quarters": 1.2,
    "none_vs_fixed": 1.2,
    "campaign_95": 0.5,
}
NAMES = {"AUC .95": "95", "AUC .72": "72", "blind": "blind", 0.5: "half", 0.75: "three_quarters"}
MOST = 8000  # labels
RATES = (0.2, 0.1, 0.05)  # of a campaign's models: every retraining repairs half of the failures
PURSE = 800  # proof labels of a campaign, for the decision to pause


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 50 s")
    quick = parser.parse_args().quick
    ratios, errors = single_models(200 if quick else 2000)
    more, more_errors = campaigns(6 if quick else 100)
    ratios, errors = ratios | more, errors | more_errors
    _timing.finish("proof", ratios)
    missed = [f"{k}: {ratios[k]:.2f}, aim {aim}" for k, aim in AIMS.items() if ratios[k] - 2.5 * errors[k] > aim]
    if missed:
        raise SystemExit(f"proofs need too many labels: {'; '.join(missed)}")


def fixed_sample(pmi: float) -> int:
    """The smallest number of labels with which Clopper-Pearson's bound meets the requirement in 80 % of runs."""
    n = np.arange(1, 5000)
    most = binom.ppf(ALPHA, n, REQUIREMENT)
    most = np.where(binom.cdf(most, n, REQUIREMENT) <= ALPHA, most, most - 1)  # failures that are few enough
    return int(n[np.argmax(binom.cdf(most, n, pmi) >= 0.8)])


def single_models(repetitions: int) -> tuple[dict[str, float], dict[str, float]]:
    """Mean labels of one model's proof; ratios, and their standard errors."""
    rows, ratios, errors = [], {}, {}
    for name, auc in AUCS.items():
        for share in SHARES:
            field = regimes(REQUIREMENT * max(share, 0.3))[name]
            field = field if share else replace(field, rates=np.zeros_like(field.rates))

            def labels(guided: bool, batch: int | None, field=field, share=share) -> np.ndarray:
                return labels_until_met(
                    field, REQUIREMENT, alpha=ALPHA, repetitions=repetitions if share else 20, most=MOST,
                    generator=np.random.default_rng(1), guided=guided, batch=batch,
                )  # fmt: skip

            today, guided, fixed = labels(False, 25), labels(True, None), fixed_sample(REQUIREMENT * share)
            proof = guided if auc >= MIN_AUC else labels(False, None)
            found = [proof.mean(), np.quantile(proof, 0.9), guided.mean(), today.mean(), fixed]
            ratio = proof.mean() / today.mean()
            rows.append([name, f"{share:g}", *(f"{x:.0f}" for x in found), f"{ratio:.2f}"])
            kind = "none_vs_fixed" if auc >= MIN_AUC else "none_vs_fixed_unguided"
            key = f"proof_{NAMES[name]}_{NAMES[share]}" if share else kind
            ratios[key] = ratio if share else proof.mean() / fixed
            spread = [(x.std() / x.mean()) ** 2 / len(x) for x in (proof, today)]
            errors[key] = ratio * sum(spread) ** 0.5
    columns = ["risks", "pmi / requirement", "proof", "90 %", "guided", "sequence, 25", "fixed, 80 % power", "ratio"]
    _timing.show(f"Labels to show pmi <= {REQUIREMENT}, {repetitions} repetitions", columns, rows)
    return ratios, errors


# Campaigns of three models -------------------------------------------------------------------------------------------


def campaigns(repetitions: int) -> tuple[dict[str, float], dict[str, float]]:
    """Mean labels until the third model meets the requirement."""
    rows, ratios, errors = [], {}, {}
    for name, auc in AUCS.items():
        found = np.array([campaign(auc, seed) for seed in range(repetitions)])
        shared, fresh = found.mean(0)
        ratio, spread = shared / fresh, found.std(0) / found.mean(0) / repetitions**0.5
        ratios[f"campaign_{NAMES[name]}"] = ratio
        errors[f"campaign_{NAMES[name]}"] = ratio * float((spread**2).sum()) ** 0.5
        rows.append([name, f"{shared:.0f}", f"{fresh:.0f}", f"{ratio:.2f}"])
    columns = ["risks", "proof, shared labels", "sequence, fresh labels", "ratio"]
    _timing.show(f"Labels until the third model is proved, {repetitions} campaigns", columns, rows)
    return ratios, errors


def campaign(auc: float, seed: int) -> tuple[int, int]:
    """Labels with one proof for all models, and with plain sequences and fresh labels for each."""
    models = simulated_models(auc, seed)
    options = ProofOptions(requirement=REQUIREMENT, labels=MOST // 4, classes=2, seed=seed)
    shared = begin_proof(options, block_pool(range(len(models[0])), seed=seed), models[0])
    for k, model in enumerate(models):
        shared = run(shared.next_model(model), last=k == 2, spent=0, batch=lambda proof: proof.forecast.batch)
    fresh = 0
    for k in range(len(models)):
        blind = [replace(model, auc=0.5) for model in models[: k + 1]]
        proof = begin_proof(options, block_pool(range(len(models[0])), seed=seed + 10_000 * k + 1), blind[0])
        for model in blind:
            proof = proof.next_model(model)
        fresh += len(run(proof, last=k == 2, spent=fresh, batch=lambda proof: 25).state.blocks)
    return len(shared.state.blocks), fresh


def run(proof: Proof, *, last: bool, spent: int, batch: Callable[[Proof], int]) -> Proof:
    """Until the requirement is met; but for the last model, until more labels are forecast than the purse has left."""
    tried = False
    while not proof.bound.met:
        left = PURSE - spent - len(proof.state.blocks)
        if tried and not last and proof.forecast.mean > left:
            break
        proof = proof.ask(min(batch(proof), proof.labels_left))
        proof, tried = proof.answer(dict.fromkeys(proof.asked, 0)), True
    return proof


def simulated_models(auc: float, seed: int, *, n: int = 30_000) -> list[ScoredModel]:
    """Later models repair some failures of earlier ones; the true class is always 0."""
    g = np.random.default_rng(seed)
    failed, shift, models = g.random(n + 1000) < RATES[0], distance(auc), []
    noise = g.normal(size=n + 1000)
    for before, rate in zip((RATES[0], *RATES), RATES, strict=False):
        failed = failed & (g.random(n + 1000) < rate / before)
        score = noise + shift * failed
        risk = 1 / (1 + np.exp(3.3 - 2 * score))
        models.append(scored_model(failed[:n].astype(int), risk[:n], profile_risk=risk[n:], auc=auc))
    return models


def distance(auc: float) -> float:
    """Distance of two normal distributions of scores with this AUC."""
    return float(np.sqrt(2) * norm.ppf(auc))


if __name__ == "__main__":
    main()
