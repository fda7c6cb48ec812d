"""What the paper says of NIN on CIFAR-10 (Zhang, 2020, section 2.4)."""

BEST_ACCURACY, SECOND, LEAD = "HL", "LL", 1.64  # the improvement of the first is 64 % higher than of the second
NEGATIVE = ("DeepFool", "C&W")  # whose data lower accuracy
BEST_TRANSFER, RATE = "LH", 0.923  # mean over three types of attacks, which it does not name
