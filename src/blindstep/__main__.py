"""`python -m blindstep`: the command line."""

from blindstep.cli import main

main()
