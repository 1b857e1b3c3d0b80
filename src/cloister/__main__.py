"""``python -m cloister``: the commands, where the script is not on the path."""

from cloister.cli import main

if __name__ == "__main__":
    main()
