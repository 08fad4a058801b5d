"""ATM Forum 97-0616: buffers for persistent SACK TCP sources over satellite UBR."""
