"""Rotary tables: cosines and sines of a step's positions."""
