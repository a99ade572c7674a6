"""Ways to get the classifier that is frozen while masks train: one file each, with the contract of `base.HeadKind`.

What they send are real frames; `simulate` counts their bytes apart and in the total (METHOD, decision 14).
"""

from __future__ import annotations

from deltamask.heads.linear import Average, Head, from_bytes, to_bytes, train_head

__all__ = ["Average", "Head", "from_bytes", "to_bytes", "train_head"]
