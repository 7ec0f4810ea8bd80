"""The exit codes of the command, besides 0: a plan was found."""

NOTHING_FITS = 1
"""An answer, and there is none such: nothing fits, no target is met, a promise is broken."""
BAD_INPUT = 2
BUG = 70
INTERRUPTED = 130
"""The best so far is printed."""
BROKEN_PIPE = 141
"""The reader of stdout has gone."""
