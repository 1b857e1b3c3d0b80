"""What a population of tasks has spent over all its runs: accounts, charges, and where they are kept."""

from cloister.ledger.accounts import Ledger, Store
from cloister.ledger.charges import Account, Charge

__all__ = ["Account", "Charge", "Ledger", "Store"]
