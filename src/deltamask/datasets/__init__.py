"""Labelled images: a data set is a module with ``load(root) -> (train, test)``, one file each."""
