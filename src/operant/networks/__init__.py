"""LeNet-5, training and weights of networks, generative models, and encoders of inputs."""

from operant.networks.cvae import CVAE, fit_cvae
from operant.networks.encoders import PCA, Flat, fit_flat, fit_pca
from operant.networks.gan import GAN, ConditionalGenerator, fit_gan
from operant.networks.lenet import LeNet5
from operant.networks.perceptron import Perceptron, fit_perceptron
from operant.networks.training import Epoch, Fitted, fit, initialise
from operant.networks.two_sample import TwoSample, fit_two_sample, two_sample_auc
from operant.networks.vae import VAE, fit_vae
from operant.networks.weights import load_weights, save_weights

__all__ = [
    "CVAE",
    "GAN",
    "PCA",
    "VAE",
    "ConditionalGenerator",
    "Epoch",
    "Fitted",
    "Flat",
    "LeNet5",
    "Perceptron",
    "TwoSample",
    "fit",
    "fit_cvae",
    "fit_flat",
    "fit_gan",
    "fit_pca",
    "fit_perceptron",
    "fit_two_sample",
    "fit_vae",
    "initialise",
    "load_weights",
    "save_weights",
    "two_sample_auc",
]
