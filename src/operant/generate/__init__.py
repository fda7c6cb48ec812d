"""Step 3: from seeds to cases."""

from operant.generate.adapters import from_art, from_autoattack, from_foolbox
from operant.generate.carlini_wagner import CarliniWagner
from operant.generate.deepfool import DeepFool
from operant.generate.fol_fuzz import FOLFuzz
from operant.generate.gradient_sign import BIM, FGSM, PGD
from operant.generate.operational.conditions import ConditionMove, replay
from operant.generate.operational.defaults import default_moves, default_radii, unguided
from operant.generate.operational.draws import RecipeDraws
from operant.generate.operational.fuzz import OperationalFuzz
from operant.generate.operational.genetic import GeneticMove, hda
from operant.generate.operational.gradient import GradientMove
from operant.generate.semantic.fuzz import FeatureFuzz
from operant.generate.semantic.quality import Quality, frechet_distance
from operant.generate.semantic.source import FeatureSource, from_biggan
from operant.generate.semantic.validity import ClassLikelihood, Tally, Validity, fit_class_likelihood, tally
from operant.generate.uncertainty import UncertaintyFuzz

__all__ = [
    "BIM",
    "FGSM",
    "PGD",
    "CarliniWagner",
    "ClassLikelihood",
    "ConditionMove",
    "DeepFool",
    "FOLFuzz",
    "FeatureFuzz",
    "FeatureSource",
    "GeneticMove",
    "GradientMove",
    "OperationalFuzz",
    "Quality",
    "RecipeDraws",
    "Tally",
    "UncertaintyFuzz",
    "Validity",
    "default_moves",
    "default_radii",
    "fit_class_likelihood",
    "frechet_distance",
    "from_art",
    "from_autoattack",
    "from_biggan",
    "from_foolbox",
    "hda",
    "replay",
    "tally",
    "unguided",
]
