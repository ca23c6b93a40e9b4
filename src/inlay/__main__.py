"""`python -m inlay`."""

from inlay.cli import main

if __name__ == "__main__":
    main()
