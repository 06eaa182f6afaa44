"""Integrations with other libraries. Each is imported only by code that uses that library."""
