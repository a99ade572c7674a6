"""theta -> bytes -> theta: what the server sends, one file each.

A downlink is a module with ``DOWNLINK``, an object with ``encode(theta) -> bytes`` and
``decode(data, size) -> theta`` for untrusted bytes.
"""
