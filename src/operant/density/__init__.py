"""Densities of inputs or features: kernel estimates, mixtures and flows, each with ``log_prob`` and ``sample``."""

from operant.density.flow import Flow, fit_flow
from operant.density.kde import KDE, fit_kde
from operant.density.mixture import Mixture, fit_mixture

__all__ = ["KDE", "Flow", "Mixture", "fit_flow", "fit_kde", "fit_mixture"]
