"""Client of Sextant, a distributed log-structured database."""

from sextant._client import Client, Operation, Outcome, Record
from sextant._errors import Error

__all__ = ["Client", "Error", "Operation", "Outcome", "Record"]
