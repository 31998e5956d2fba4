"""What a part of a sequence does to any Kimi Delta Attention state: the local half of context parallelism."""
