"""Questions asked of the whole system; each is a folder that prints a table and draws a picture.

`goals/` holds the shipped goal files and `starts/` the states that a run can begin from; both are data.
"""
