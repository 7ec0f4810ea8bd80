"""Compiled programs: their memory, their HLO, and their collectives beside those that were priced."""
