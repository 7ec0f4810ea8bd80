"""`plan --phase serve`: a prefill and a decode plan together."""
