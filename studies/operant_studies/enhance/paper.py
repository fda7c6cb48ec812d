"""The paper's claims about NIN on CIFAR-10 (Zhang, 2020, section 2.4)."""

BEST_ACCURACY, SECOND, LEAD = "HL", "LL", 1.64  # the improvement of the first is 64 % higher
NEGATIVE = ("DeepFool", "C&W")  # attacks whose data lower accuracy
BEST_TRANSFER, RATE = "LH", 0.923  # mean over three attacks that it does not name
