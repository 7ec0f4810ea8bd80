"""Run layout programs: the steps that were priced, executed on the devices of a mesh."""
