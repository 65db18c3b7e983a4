"""The quality presets of a checkpoint: the calibration file, and the plans of each preset."""
