"""What several backends need."""
