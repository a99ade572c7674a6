"""Vectors of numbers <-> bytes, one file each: how methods that send changes of weights make them small."""
