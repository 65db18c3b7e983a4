"""Turns points into pictures and into one self-contained page."""
