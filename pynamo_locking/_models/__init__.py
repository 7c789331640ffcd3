"""What users derive their models from."""
