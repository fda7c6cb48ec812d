"""Detectors and input transformations as defences, and their evaluation on suites."""

from operant.defend.criteria import AccuracyChange, TransferCalibration, accuracy_change, transfer_calibration_rate
from operant.defend.deflection import PixelDeflection
from operant.defend.evaluate import Corrector, Defence, DefenceTable, Detector, Success, evaluate_defences
from operant.defend.logits import LogitDetector, fit_logit_detector
from operant.defend.mutation import MutationDecisions, MutationDetector, fit_mutation_detector
from operant.defend.non_local_means import NonLocalMeans
from operant.defend.sequential import SequentialTest
from operant.defend.squeezing import FeatureSqueezing, fit_feature_squeezing, squeezing_score
from operant.defend.total_variation import TotalVariation
from operant.defend.transforms import JPEG, BitDepth, CropRescale, Median, TransformedInputs, crops

__all__ = [
    "JPEG",
    "AccuracyChange",
    "BitDepth",
    "Corrector",
    "CropRescale",
    "Defence",
    "DefenceTable",
    "Detector",
    "FeatureSqueezing",
    "LogitDetector",
    "Median",
    "MutationDecisions",
    "MutationDetector",
    "NonLocalMeans",
    "PixelDeflection",
    "SequentialTest",
    "Success",
    "TotalVariation",
    "TransferCalibration",
    "TransformedInputs",
    "accuracy_change",
    "crops",
    "evaluate_defences",
    "fit_feature_squeezing",
    "fit_logit_detector",
    "fit_mutation_detector",
    "squeezing_score",
    "transfer_calibration_rate",
]
