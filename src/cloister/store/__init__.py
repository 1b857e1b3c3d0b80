"""What is durable: the billboard, the journal by which a run goes on, and the files that they stand in."""

from cloister.store.billboard import Billboard
from cloister.store.records import Release

__all__ = ["Billboard", "Release"]
