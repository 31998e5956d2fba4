"""States before and after every part of a sequence: the combining half of context parallelism."""
