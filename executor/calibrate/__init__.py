"""Measuring the devices of this machine, and fitting the constants of a chip file to them."""
