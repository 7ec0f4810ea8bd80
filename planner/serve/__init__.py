"""Serving: a prefill and a decode plan together."""
