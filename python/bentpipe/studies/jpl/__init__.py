"""The JPL testbed's table: TCP channel utilization over satellite delay and bit error rate."""
