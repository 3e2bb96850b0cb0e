"""What people look at: tables and the demonstration."""
