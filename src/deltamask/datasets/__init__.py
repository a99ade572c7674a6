"""Labelled images: a data set is a module with ``DATASET``, one file each; see `deltamask.datasets.base`."""
