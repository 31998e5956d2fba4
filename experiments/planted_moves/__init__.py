"""Moves with a planted fault, and how long the ladder takes to turn each of them down."""
