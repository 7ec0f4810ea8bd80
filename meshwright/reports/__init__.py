"""Answers as text for people: tables, lines and plots. Nothing here computes a figure."""
