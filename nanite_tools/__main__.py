"""`python -m nanite_tools`."""

from nanite_tools.cli import main

if __name__ == "__main__":
    main()
