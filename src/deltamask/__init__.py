"""DeltaMask: federated fine-tuning of foundation models over thin uplinks."""

__version__ = "0.1.0"
