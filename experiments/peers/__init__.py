"""Side by side with other engines; `drivers/` holds one program a peer, run in the peer's own virtual environment."""
