"""Slow, plain versions of the fast loops, written from their description."""
