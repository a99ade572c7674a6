"""theta -> bytes -> theta: what the server sends, one file each.

A downlink is a module with ``DOWNLINK``, a subclass of `base.Downlink`: mostly a `base.Code`, which is
``encode(theta) -> bytes`` and ``decode(data, size) -> theta`` for untrusted bytes.
"""
