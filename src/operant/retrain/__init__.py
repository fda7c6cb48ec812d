"""Step 4: from a model and chosen cases to a better model."""

from operant.retrain.finetune import Finetune, FinetuneEpoch, FinetuneRecord, Retrained

__all__ = ["Finetune", "FinetuneEpoch", "FinetuneRecord", "Retrained"]
