"""HERMES and IperSpace: files, streams and conferences over a satellite carrier and ISDN."""
