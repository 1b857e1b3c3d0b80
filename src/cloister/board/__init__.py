"""What is public and durable: the billboard, its records, and the files they stand in."""

from cloister.board.billboard import Billboard, Release

__all__ = ["Billboard", "Release"]
