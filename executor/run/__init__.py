"""The run reader: a program's steps, executed on the devices of a mesh."""
