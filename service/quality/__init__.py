"""What `quality` means for a checkpoint: the calibration file, how presets are chosen, its picture. No torch."""
