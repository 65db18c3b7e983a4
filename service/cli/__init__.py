"""The program `mrp-serve`: one file for each command. `main.py` puts them together."""
