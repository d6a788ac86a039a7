"""`python -m stormdrop`: the command line."""

from stormdrop.cli import main

if __name__ == "__main__":
    main()
