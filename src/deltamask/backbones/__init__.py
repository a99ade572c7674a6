"""Frozen pre-trained models: one file each."""
