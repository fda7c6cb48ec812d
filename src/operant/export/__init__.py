"""What is known of a field, for other training code: a transform, class weights, inputs to label, and failures."""

from operant.export.class_weights import ClassWeight, class_weights
from operant.export.contents import ExportContents, Missing
from operant.export.failures import ExportedFailures, read_failures
from operant.export.field_transform import FieldTransform
from operant.export.labelling import ToLabel, choose_to_label, labelled_ids, learning_half
from operant.export.planning import ExportPlan
from operant.export.writing import write_export

__all__ = [
    "ClassWeight",
    "ExportContents",
    "ExportPlan",
    "ExportedFailures",
    "FieldTransform",
    "Missing",
    "ToLabel",
    "choose_to_label",
    "class_weights",
    "labelled_ids",
    "learning_half",
    "read_failures",
    "write_export",
]
