"""The quality presets of a checkpoint: the calibration file, the choice of presets, the picture."""
