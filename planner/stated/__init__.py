"""What a plan file states besides its plans, as typed values."""
