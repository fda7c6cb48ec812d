"""Networks used by the studies, their training and weights, generative models, and encoders of inputs."""

from operant.networks.cvae import CVAE, fit_cvae
from operant.networks.encoders import PCA, Flat, fit_flat, fit_pca
from operant.networks.gan import GAN, ConditionalGenerator, fit_gan
from operant.networks.lenet import LeNet5
from operant.networks.mobilenet import MobileNetV1, MobileNetV2, folded
from operant.networks.nin import NIN
from operant.networks.resnet import ResNet20
from operant.networks.training import Epoch, Fitted, fit, initialise
from operant.networks.vae import VAE, fit_vae
from operant.networks.weights import load_weights, save_weights

__all__ = [
    "CVAE",
    "GAN",
    "NIN",
    "PCA",
    "VAE",
    "ConditionalGenerator",
    "Epoch",
    "Fitted",
    "Flat",
    "LeNet5",
    "MobileNetV1",
    "MobileNetV2",
    "ResNet20",
    "fit",
    "fit_cvae",
    "fit_flat",
    "fit_gan",
    "fit_pca",
    "fit_vae",
    "folded",
    "initialise",
    "load_weights",
    "save_weights",
]
