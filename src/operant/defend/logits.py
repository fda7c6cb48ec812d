"""A binary classifier that separates adversarial from benign inputs by the model's logits or by a layer."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from operant.data import Samples
from operant.defend._common import calibrated, check_predictions, check_shape, split_benign
from operant.measure.conformal import Conformal
from operant.model import Classifier
from operant.networks.training import fit, initialise
from operant.validation import check_at_least, check_row_shape

INPUT, LOGITS = "input", "logits"


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitDetector:
    """Rejects inputs that a small network on the model's logits considers adversarial; from `fit_logit_detector`.

    Attributes:
        on: the network's input: ``"logits"``, ``"input"`` or the name of a layer.
        network: from standardised values to two logits, benign and adversarial.
        centre, scale: for standardising.
        calibration: scores of benign inputs that the network did not learn from.
    """

    model: Classifier
    on: str
    network: Classifier = field(repr=False)
    centre: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)
    calibration: Conformal = field(repr=False)
    level: float
    shape: tuple[int, ...]

    def score(self, x: Tensor) -> Tensor:
        """The network's adversarial logit minus its benign one, ``(N,)``."""
        check_shape(x, self.shape)
        return _scores(self.network, (detector_inputs(self.model, x, self.on) - self.centre) / self.scale)

    def accepts(self, x: Tensor) -> Tensor:
        """Booleans ``(N,)``: which inputs are accepted as benign."""
        return self.calibration.p_values(self.score(x)) >= self.level


def fit_logit_detector(
    model: Classifier,
    benign: Samples,
    adversarial: Samples,
    *,
    on: str = LOGITS,
    level: float = 0.05,
    calibration: float = 0.5,
    hidden: int = 64,
    epochs: int = 100,
    learning_rate: float = 5e-3,
    generator: torch.Generator,
) -> LogitDetector:
    """A detector trained on benign and adversarial inputs.

    A network of one hidden layer is trained on part of the benign inputs and all adversarial ones. The other benign
    inputs calibrate it: at most a share ``level`` of new ones from the same distribution is rejected. (Gong et al.
    reject whatever the network considers adversarial.) It knows only the attacks it was trained on; evaluate it on
    others.

    Args:
        benign: inputs that it classifies correctly and was not trained on.
        adversarial: inputs that it misclassifies, for instance ``suite.failures().samples()``, from other seeds than
            those of the evaluation.
        on: ``"logits"`` as in Zhang et al., ``"input"`` as in Gong et al., or the name of a layer.
        level: the false-positive rate.
        calibration: share of the benign inputs for calibration, split by id.
        epochs, learning_rate: of its training; the best epoch is kept, by a held-out tenth.

    References:
        | Adversarial and Clean Data Are Not Twins (Gong et al., 2017), https://arxiv.org/abs/1704.04960
        | Towards Characterizing Adversarial Defects of Deep Learning Software from the Lens of Uncertainty
        | (Zhang et al., 2020), section 5.2, https://arxiv.org/abs/2004.11573
    """
    check_predictions(model, benign, correct=True)
    check_row_shape(tuple(benign.shape), adversarial=adversarial.x, advice="resize them to that of benign inputs")
    check_predictions(model, adversarial, correct=False)
    check_at_least(1, hidden=hidden)
    learned, held = split_benign(benign, calibration)
    values = detector_inputs(model, torch.cat([learned.x, adversarial.x.to(learned.x)]), on)
    scale, centre = torch.std_mean(values, 0)
    scale = torch.where(scale > 0, scale, 1.0)
    kinds = torch.arange(2).repeat_interleave(torch.tensor([len(learned), len(adversarial)]))
    rows = Samples((values - centre) / scale, kinds, torch.cat([learned.ids, adversarial.ids]))
    start = initialise(
        lambda: nn.Sequential(nn.Linear(rows.shape[0], hidden), nn.ReLU(), nn.Linear(hidden, 2)).to(values.device),
        generator=generator,
    )
    fitted = fit(start, rows, epochs=epochs, learning_rate=learning_rate, generator=generator, progress=False)
    network = Classifier(fitted.module, bounds=(-math.inf, math.inf), strict=True)
    return LogitDetector(
        model=model,
        on=on,
        network=network,
        centre=centre,
        scale=scale,
        calibration=calibrated(_scores(network, (detector_inputs(model, held.x, on) - centre) / scale), level),
        level=level,
        shape=tuple(benign.shape),
    )


def detector_inputs(model: Classifier, x: Tensor, on: str) -> Tensor:
    """The detector's view of each input, ``(N, values)`` in float32."""
    if on == INPUT:
        model.check_inputs(x)
        values = x
    elif on == LOGITS:
        values = model.batched_logits(x)
    else:
        values = model.features(x, layers=[on])[on]
    return values.flatten(1).float()


def _scores(network: Classifier, values: Tensor) -> Tensor:
    z = network.batched_logits(values)
    return z[:, 1] - z[:, 0]
