"""Readers of the journal: leaks, hazards, residency, timeline, interception."""
