"""Models: each a readable list of operator calls over named weights. No scheduling, no files."""
