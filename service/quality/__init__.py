"""The quality presets of a checkpoint: the calibration file, and the presets by load."""
