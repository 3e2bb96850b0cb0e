"""What people read about a run: tables, reports, certificates and the audit."""
