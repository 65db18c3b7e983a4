"""Decoding rules as pure Python: blocks, the policy protocol, one file per mode, the registry."""
