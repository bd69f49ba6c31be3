"""What is true: migrations, and every SQL statement."""
