"""The numba loops, and nothing else: plain functions over NumPy arrays, called from the stage they serve."""
