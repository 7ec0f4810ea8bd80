"""Calibration: measure the devices of this machine and fit the constants of a chip file to the measurements."""
