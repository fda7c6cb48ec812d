"""The networks that studies use, their weights on disk, and training."""

from operant.networks.lenet import LeNet5
from operant.networks.resnet import ResNet20
from operant.networks.training import Epoch, Fitted, fit, initialise
from operant.networks.vae import VAE, fit_vae
from operant.networks.weights import load_weights, save_weights

__all__ = [
    "VAE",
    "Epoch",
    "Fitted",
    "LeNet5",
    "ResNet20",
    "fit",
    "fit_vae",
    "initialise",
    "load_weights",
    "save_weights",
]
