"""The chapter's closed forms: intensities, ICI bounds, crossover, the step-time table."""
