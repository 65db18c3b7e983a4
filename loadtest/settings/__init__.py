"""Serve's settings beside each other, one changed at a time.

`python -m loadtest.settings` starts the service anew for each. It prints a table and one line of JSON.
"""
