"""What papers say that leasekit builds on, repeated: claims that are written down before a run, and what was found."""
