"""Draws pictures, writes reference pages and records results. It is not installed."""
