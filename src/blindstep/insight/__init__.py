"""What people look at: tables, reports, certificates, the audit and the demonstration."""
