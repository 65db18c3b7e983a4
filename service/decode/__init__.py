"""Decoding rules as pure Python: blocks, the policy protocol, reveal rules, modes and their registry."""
