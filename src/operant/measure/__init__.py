"""Measures of a case, one value per row: loss, uncertainty, coverage, surprise, naturalness, similarity."""

from operant.measure.activations import Neurons, find_neurons, neurons
from operant.measure.appearance import appearance
from operant.measure.conformal import Conformal, conformal_p_values, fit_conformal, min_bonferroni
from operant.measure.coverage import KMNC, NBC, NC, SNAC, TKNC, Coverage, NeighbourCoverage, Ranges, fit_ranges
from operant.measure.judge import FoldJudge, Judge, fit_judge
from operant.measure.lift import Lift, LiftAt, lift
from operant.measure.loss import first_order_loss, zero_order_loss
from operant.measure.mc_dropout import Passes, mc_dropout, with_dropout
from operant.measure.naturalness import Naturalness, fit_naturalness, load_naturalness, rank_correlation
from operant.measure.patterns import AUC, Characterisation, KindSummary, auc, auc_difference, characterise, plot_plane
from operant.measure.similarity import mse, psnr, ssim
from operant.measure.surprise import DSA, LSA, MDSA, fit_dsa, fit_lsa, fit_mdsa
from operant.measure.uncertainty import (
    Thresholds,
    annotate,
    entropy,
    gini,
    margin,
    mutual_information,
    pattern,
    prediction_confidence,
    predictive_entropy,
    variation_ratio,
    variation_ratio_original,
)

__all__ = [
    "AUC",
    "DSA",
    "KMNC",
    "LSA",
    "MDSA",
    "NBC",
    "NC",
    "SNAC",
    "TKNC",
    "Characterisation",
    "Conformal",
    "Coverage",
    "FoldJudge",
    "Judge",
    "KindSummary",
    "Lift",
    "LiftAt",
    "Naturalness",
    "NeighbourCoverage",
    "Neurons",
    "Passes",
    "Ranges",
    "Thresholds",
    "annotate",
    "appearance",
    "auc",
    "auc_difference",
    "characterise",
    "conformal_p_values",
    "entropy",
    "find_neurons",
    "first_order_loss",
    "fit_conformal",
    "fit_dsa",
    "fit_judge",
    "fit_lsa",
    "fit_mdsa",
    "fit_naturalness",
    "fit_ranges",
    "gini",
    "lift",
    "load_naturalness",
    "margin",
    "mc_dropout",
    "min_bonferroni",
    "mse",
    "mutual_information",
    "neurons",
    "pattern",
    "plot_plane",
    "prediction_confidence",
    "predictive_entropy",
    "psnr",
    "rank_correlation",
    "ssim",
    "variation_ratio",
    "variation_ratio_original",
    "with_dropout",
    "zero_order_loss",
]
