"""What is wrong with an engine? Starts with one planted cause each, and the first-ranked cause of the diagnosis."""
