"""What compilers say: compiled programs, their HLO, and their collectives beside those that were priced."""
