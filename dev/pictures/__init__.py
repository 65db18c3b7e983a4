"""The pictures of README and docs: decoding, and the frontier of a calibration. Needs matplotlib."""
