"""A repair from files, in a folder that it can be resumed from: what the command ``operant repair`` does."""

from operant.repairing.inputs import RepairInputs, repair_inputs
from operant.repairing.job import RepairJob
from operant.repairing.record import RepairRecord

__all__ = ["RepairInputs", "RepairJob", "RepairRecord", "repair_inputs"]
