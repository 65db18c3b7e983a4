"""Measures plans on prompts, chooses the presets and makes the calibration file: `mrp-serve calibrate`."""
