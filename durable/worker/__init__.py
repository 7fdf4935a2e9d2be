"""Worker processes: claim due runs, execute their passes, renew their leases, hand them over."""
