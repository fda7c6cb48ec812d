"""Step 3: from seeds to cases."""

from operant.generate.adapters import from_art, from_autoattack, from_foolbox
from operant.generate.carlini_wagner import CarliniWagner
from operant.generate.deepfool import DeepFool
from operant.generate.fol_fuzz import FOLFuzz
from operant.generate.gradient_sign import BIM, FGSM, PGD
from operant.generate.operational import (
    ConditionMove,
    GeneticMove,
    GradientMove,
    OperationalFuzz,
    default_moves,
    default_radii,
    hda,
    replay,
    unguided,
)
from operant.generate.semantic import (
    ClassLikelihood,
    FeatureFuzz,
    FeatureSource,
    Quality,
    Tally,
    Validity,
    fit_class_likelihood,
    frechet_distance,
    from_biggan,
    tally,
)
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
