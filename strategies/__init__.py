"""What can be sharded: model shapes, the notation, programs, and their readers."""
