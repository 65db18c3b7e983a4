"""Serving system for block-diffusion language models with Multi-token Residual Prediction (MRP)."""

__version__ = "0.2.0"
