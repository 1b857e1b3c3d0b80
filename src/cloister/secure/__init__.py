"""Secure sums: masks that only a sum is rid of, as state machines without files, sockets or clocks."""
