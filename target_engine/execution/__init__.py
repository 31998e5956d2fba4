"""Runs a plan: builds the step's tensors, calls the model, samples, turns tokens into text. Decides nothing about who
runs.
"""
