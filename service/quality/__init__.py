"""The quality presets of a checkpoint: the calibration file, its identity, the presets by load."""
