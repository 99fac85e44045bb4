"""What a package holds, shown, compared and tried."""
