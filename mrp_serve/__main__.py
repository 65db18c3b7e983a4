"""`python -m mrp_serve`: the program `mrp-serve`."""

from service.cli.__main__ import main

main()
