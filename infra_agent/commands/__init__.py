"""The commands: one module each, with `register(app)`. A module here is a command; nothing else lists it.

A module imports typer and nothing heavier at its top, so that help stays fast; the command's body imports the rest.
"""
