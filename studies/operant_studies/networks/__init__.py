"""Networks that the studies and benchmarks test: NIN, MobileNets and ResNet-20."""

from operant_studies.networks.mobilenet import MobileNetV1, MobileNetV2, folded
from operant_studies.networks.nin import NIN
from operant_studies.networks.resnet import ResNet20

__all__ = ["NIN", "MobileNetV1", "MobileNetV2", "ResNet20", "folded"]
